"""Tiering is invisible: a table with next to no hot rows gives bit for bit what its model gives, whatever is called."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_on_device import OnGpu
from blocks import nothing_grows
from crashes import copy_of_open
from cuda_devices import device_of
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stress.lockstep import LockstepChecker
from stress.model import Model

import kvemb
from kvemb import registry
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.rows.schema import value_dtype
from kvemb.threads.pool import Here
from tests.histories import small_spill

KEYS = 160
EXAMPLES = int(os.environ.get("KVEMB_EXAMPLES", "3"))
SETTINGS = settings(
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


class Damped(kvemb.RestrictPolicy):
    """A user's own policy: uses, and a trace of when; never the same twice."""

    def score(self, old_score: Any, count: Any, now: float) -> Any:
        return old_score * 0.75 + count + now / 64.0


def shuffled(keys: Any, hot_tables: int) -> Any:
    """A partitioner that is not the default, and puts nothing on the first of three devices."""
    mixed = np.asarray(keys).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(60)
    return (mixed % np.uint64(max(1, hot_tables - 1))).astype(np.int64) + (1 if hot_tables == 3 else 0)


def universe(name: str, count: int) -> Any:
    """Keys of a dtype: a dense run about 0, and the extremes."""
    kind = np.iinfo(name)
    dense = np.arange(max(kind.min, -count // 2), max(kind.min, -count // 2) + count, dtype=name)
    ends = np.array([kind.min, kind.min + 1, kind.max - 1, kind.max, kind.max // 2, kind.max // 2 + 1], name)
    return np.unique(np.concatenate([dense, ends]))


def numbers(seed: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Values of a dtype, its awkward ones among them."""
    chance = np.random.default_rng(seed)
    if dtype.kind == "i":
        kind = np.iinfo(dtype)
        return chance.integers(kind.min, kind.max, shape, dtype, endpoint=True)
    awkward = np.array([0.0, -0.0, 1.0, 1e-7, 6e-8, 65504.0, np.inf, 1e30, 3.3895e38])
    plain = chance.standard_normal(shape)
    with np.errstate(over="ignore"):
        return np.where(chance.random(shape) < 0.05, chance.choice(awkward, shape), plain).astype(dtype)


POLICIES = [
    None,
    kvemb.TimestampRestrictPolicy(clock="steps"),
    kvemb.FrequencyRestrictPolicy(),
    kvemb.FrequencyRestrictPolicy(half_life=7.5),
    Damped(),
]
PLACES = st.integers(0, KEYS + 5)
# Rows spill all the time, in piles of a few; in pieces: calls are cut into chunks, and batches are split among threads.
PILES = small_spill(8)
PIECES = {"call_rows": 7, "hot_parallel_keys": 4, "cold_parallel_keys": 4, "batch_rows": 5}
# Few keys with duplicates, or a run of many.
RUNS = st.builds(lambda start, length: list(range(start, start + length)), PLACES, st.integers(0, KEYS))
BATCHES = st.lists(PLACES, max_size=30) | RUNS
SEEDS = st.integers(0, 2**32 - 1)


# What may come between a lookup and its update, by what it is called.
BETWEEN: dict[str, Callable[[Any, list[int], int], object]] = {
    "lookup": lambda machine, others, seed: machine.lookup(others, seed % 2 > 0, False, False),
    "prefetch": lambda machine, others, seed: machine.prefetch(others, seed % 2 > 0),
    "upsert": lambda machine, others, seed: machine.upsert(others, seed),
    "accum": lambda machine, others, seed: machine.accum(others, seed, "random"),
    "remove": lambda machine, others, _: machine.remove(others),
    "use": lambda machine, others, _: machine.model.policy and machine.record_uses(others),
    "flush": lambda machine, *_: machine.flush(),
    "checkpoint": lambda machine, *_: machine.checkpoint_under_way(),
    "export": lambda machine, *_: machine.export(None),
    "crash": lambda machine, *_: machine.crash(),
}


class Tiering(RuleBasedStateMachine):
    """One variable and its model, under every operation there is.

    spread: keys that a place stands for. hot_rows: cells, where they do not grow. share: of EXAMPLES.
    """

    cold: type[Any] = kvemb.RocksDBCreator
    device, on_device = "cpu", "device_table:SmallTable"
    spread, share = 1, 1.0
    hot_rows: int | None = 16
    max_devices = 3
    may_be_in_pieces = True

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="tiering-"))
        self.stores = 0
        self.twin: LockstepChecker | None = None
        self.pending: kvemb.PendingCheckpoint | None = None

    @initialize(
        dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"]),
        key_dtype=st.sampled_from(["int64", "int32", "uint64"]),
        policy=st.sampled_from(POLICIES),
        trained=st.sampled_from(sorted(kvemb.optimizers.KINDS)),
        devices=st.integers(1, 3),
        growing=st.booleans(),
        dim=st.sampled_from([1, 3, 8]),
        in_pieces=st.booleans(),
        seed=SEEDS,
    )
    def start(
        self, dtype: str, key_dtype: str, policy: Any, trained: str, devices: int, growing: bool, dim: int,
        in_pieces: bool, seed: int,
    ) -> None:  # fmt: skip
        # Hypothesis begins with the simplest history: one call without keys, over and over. It is not counted.
        assume(seed > 0)
        self.limits = Limits(**PILES, **(PIECES if in_pieces and self.may_be_in_pieces else {}))
        kind = value_dtype(dtype)
        start: Any = kvemb.Constant(7) if kind.kind == "i" else kvemb.RandomNormal(stddev=0.5, seed=seed)
        made = kvemb.optimizers.KINDS[trained](learning_rate=0.1 + (seed % 7) / 8)
        optimizer = None if kind.kind == "i" else made
        self.arguments: dict[str, Any] = {
            "key_dtype": key_dtype, "value_dtype": dtype, "dim": dim,
            "devices": [self.device] * min(devices, self.max_devices),
            "initializer": start, "optimizer": optimizer, "restrict_policy": policy, "kv_creator": self.cold(),
            "partitioner": shuffled if seed % 2 else kvemb.tiers.partition.default_partitioner,
            **({"init_size": 1} if growing or self.hot_rows is None else {"hot_rows": self.hot_rows}),
        }  # fmt: skip
        keys = universe(key_dtype, KEYS * self.spread)
        self.model = Model(keys, kind, dim, initializer=start, optimizer=optimizer, policy=policy)
        self.store = self._open(self.home / "store")
        self.twin = self._twin(self.store, self.model)
        # What a crash goes back to; a variable no flush has seen is not there.
        self.durable = self.model.copy()

    def _open(self, path: Path) -> kvemb.Store:
        return kvemb.open(path, memory_budget="4MiB", limits=self.limits)

    def _restored(self, checkpoint: Path, target: Path) -> kvemb.Store:
        return kvemb.restore(checkpoint, target, memory_budget="4MiB", limits=self.limits)

    def _twin(self, store: kvemb.Store, model: Model) -> LockstepChecker:
        return LockstepChecker(store.get_variable("table", **self.arguments), model)

    def _reopened(self, store: kvemb.Store, model: Model) -> None:
        """Go on with another store, which must hold what the model says."""
        self.store = store
        if self.cold is kvemb.MemoryCreator:
            model.clear()
            model.step = 0
        self.model = model
        self.twin = self._twin(store, model)
        self.durable = model.copy()

    def _keys(self, places: list[int]) -> Any:
        each = np.repeat(np.array(places, np.intp) * self.spread, self.spread)
        each += np.tile(np.arange(self.spread), len(places))
        return self.model.universe[each % len(self.model.universe)]

    def _values(self, seed: int, places: list[int]) -> Any:
        return numbers(seed, self.model.dtype, (len(places) * self.spread, self.model.dim))

    @invariant()
    def sizes_are_equal(self) -> None:
        if self.twin is not None:
            self.twin.check_size()

    @rule(places=BATCHES, touch=st.booleans(), ahead=st.booleans(), after=st.booleans())
    def lookup(self, places: list[int], touch: bool, ahead: bool, after: bool) -> None:
        if ahead:
            self.twin.variable.prefetch(self._keys(places), after_lookup=after)
        self.twin.lookup(self._keys(places), touch=touch)

    @rule(places=BATCHES, after=st.booleans())
    def prefetch(self, places: list[int], after: bool) -> None:
        self.twin.variable.prefetch(self._keys(places), after_lookup=after)

    @rule(places=BATCHES, seed=SEEDS, how=st.sampled_from(["upsert", "remove", "use"]), flushing=st.booleans())
    def change_what_was_read_ahead(self, places: list[int], seed: int, how: str, flushing: bool) -> None:
        keys = self._keys(places)
        self.twin.variable.prefetch(keys)
        for fetch in inside(self.twin.variable).storage._locator.ahead:
            fetch.wait()
        if how == "upsert":
            self.twin.upsert(keys, self._values(seed, places))
        elif how == "remove":
            self.twin.remove(keys)
        else:
            self.twin.lookup(keys, touch=True)
        if flushing:
            self.flush()
        # Every other row passes through the hot tier, so that these have left it when they are read again.
        for at in range(0, KEYS, 40):
            self.twin.lookup(self._keys(list(range(at, at + 40))), touch=True)
        self.twin.lookup(keys, touch=False)

    @rule(places=BATCHES, seed=SEEDS)
    def upsert(self, places: list[int], seed: int) -> None:
        self.twin.upsert(self._keys(places), self._values(seed, places))

    @rule(places=BATCHES, seed=SEEDS, believing=st.sampled_from(["all", "none", "right", "random"]))
    def accum(self, places: list[int], seed: int, believing: str) -> None:
        keys = self._keys(places)
        n = len(keys)
        exists = {
            "all": np.ones(n, np.bool_),
            "none": np.zeros(n, np.bool_),
            "right": self.model.present[self.model.positions(keys)],
            "random": np.random.default_rng(seed).random(n) < 0.5,
        }[believing]
        self.twin.accum(keys, self._values(seed + 1, places), self._values(seed, places), exists)

    @precondition(lambda self: self.model.optimizer is not None)
    @rule(places=BATCHES, seed=SEEDS)
    def apply_gradients(self, places: list[int], seed: int) -> None:
        keys = self._keys(places)
        self.twin.apply_gradients(keys, numbers(seed, self.model.state_dtype, (len(keys), self.model.dim)))

    @rule(
        places=BATCHES, others=BATCHES, seed=SEEDS, between=st.sampled_from([None, *BETWEEN]),
        how=st.sampled_from(["train", "upsert", "accum", "part of them"]),
    )  # fmt: skip
    def change_what_was_looked_up(
        self, places: list[int], others: list[int], seed: int, between: str | None, how: str
    ) -> None:
        keys = self._keys(places)
        self.twin.lookup(keys, touch=True)
        if between is not None:
            BETWEEN[between](self, others, seed)
        if how == "accum":
            self.accum(places, seed, "right")
        elif how == "upsert" or self.model.optimizer is None:
            self.twin.upsert(keys, self._values(seed, places))
        else:
            self.apply_gradients(places[: len(places) // 2] if how == "part of them" else places, seed)
        if self.model.policy is not None:
            self.twin.check_status(keys)

    @rule(places=BATCHES)
    def remove(self, places: list[int]) -> None:
        self.twin.remove(self._keys(places))

    @rule(certain=st.integers(0, 3))
    def clear(self, certain: int) -> None:
        if certain == 0:
            self.twin.clear()

    @rule(keep=st.integers(0, KEYS), trigger=st.none() | st.integers(0, KEYS))
    def restrict(self, keep: int, trigger: int | None) -> None:
        self.twin.restrict(keep, trigger)

    @precondition(lambda self: self.model.policy is not None)
    @rule(places=BATCHES)
    def record_uses(self, places: list[int]) -> None:
        self.twin.use(self._keys(places))

    @precondition(lambda self: self.model.policy is not None)
    @rule(places=BATCHES)
    def status(self, places: list[int]) -> None:
        self.twin.check_status(self._keys(places))

    @rule()
    def shard_sizes(self) -> None:
        self.twin.check_shard_sizes()

    @rule(batch_rows=st.none() | st.integers(1, 40))
    def export(self, batch_rows: int | None) -> None:
        self.twin.check_export(batch_rows)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.durable = self.model.copy()

    def checkpoint_under_way(self) -> None:
        self.stores += 1
        self.pending = self.store.checkpoint(self.home / f"beside{self.stores}", block=False)
        self.durable = self.model.copy()

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self._reopened(self._open(self.store.path), self.model)

    @rule()
    def checkpoint_and_restore(self) -> None:
        self.stores += 1
        checkpoint = self.store.checkpoint(self.home / f"checkpoint{self.stores}")
        self.durable = self.model.copy()
        self.store.close()
        target = self.home / f"restored{self.stores}"
        self._reopened(self._restored(checkpoint, target), self.model)

    @rule()
    def crash(self) -> None:
        self.stores += 1
        copy = self.home / f"crashed{self.stores}"
        if self.pending is not None:  # what is durable before its end is left open
            self.pending.result()
        copy_of_open(self.store.path, copy)
        self.store.close()
        self._reopened(self._open(copy), self.durable)

    def teardown(self) -> None:
        try:
            if self.twin is not None:
                with self.store:
                    self.twin.check_export()
        finally:
            shutil.rmtree(self.home)


class TieringInMemory(Tiering):
    """The same with cold rows that closing loses."""

    cold, share = kvemb.MemoryCreator, 2 / 3


class TieringOverTheHost(Tiering):
    """Three tiers: 16 rows on a device, 16 in the host's memory below it, the others cold."""

    device, hot_rows = "gpu:0", None
    below_bytes, share = 0, 1 / 3

    def _open(self, path: Path) -> kvemb.Store:
        return self._filled(super()._open(path))

    def _restored(self, checkpoint: Path, target: Path) -> kvemb.Store:
        return self._filled(super()._restored(checkpoint, target))

    def _filled(self, store: kvemb.Store) -> kvemb.Store:
        """Another variable takes nearly all of the budget, so that nothing grows, or by below_bytes only."""
        room = inside(store).budgets.host
        kept = self.below_bytes or room.total // 32
        rows = (room.free - kept) // (8 * 4 + 26)
        store.get_variable("other", dim=8, hot_rows=rows)
        if not self.below_bytes:
            nothing_grows(store)
        return store


class TieringOnCuda(Tiering):
    """The same over the GPU's hot table, on a CPU. A bucket has 128 cells, so there are more keys: 8% of them are hot
    where the table does not grow."""

    device, on_device = "gpu:0", "cuda_on_cpu:CudaOnCpuTable"
    spread, hot_rows, share = 10, 128, 1 / 6
    may_be_in_pieces = False


class TieringOnCudaOverTheHost(TieringOverTheHost):
    """Three tiers: 8% of the keys are in a bucket of the GPU's table, some 2% in the host's memory."""

    on_device = "cuda_on_cpu:SmallCudaTable"
    spread, below_bytes, share = 10, 75_000, 1 / 6
    may_be_in_pieces = False


class TieringOfArraysOnCuda(TieringOnCudaOverTheHost):
    """The same, with arrays in the GPU's memory; there is one device. at_once: other threads' moves between tiers are
    made before the call that has them made returns, not whenever there is time."""

    max_devices, at_once = 1, False


class TieringOfArraysMovedAtOnce(TieringOfArraysOnCuda):
    """The same, where every move is made at once."""

    at_once = True

    def _twin(self, store: kvemb.Store, model: Model) -> LockstepChecker:
        variable = store.get_variable("table", **self.arguments)
        if self.at_once:
            storage = inside(variable).storage
            storage.ahead._readers = Here()
        given: Any = OnGpu(variable)
        return LockstepChecker(given, model)


@pytest.mark.slow
def test_a_history_of_a_table_with_next_to_no_hot_rows_equals_its_model() -> None:
    check(Tiering, 1)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Tiering, TieringInMemory, TieringOverTheHost])
def test_a_table_with_next_to_no_hot_rows_equals_its_model(machine: type[Tiering]) -> None:
    check(machine, machine.share * EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine", [TieringOnCuda, TieringOnCudaOverTheHost, TieringOfArraysOnCuda, TieringOfArraysMovedAtOnce]
)
def test_a_table_with_next_to_no_rows_on_a_gpu_equals_its_model(machine: type[Tiering]) -> None:
    device_of("cpu")
    check(machine, machine.share * EXAMPLES)


def check(machine: type[Tiering], examples: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.hot_backends, "gpu", machine.on_device)
        run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=max(1, int(examples))))
