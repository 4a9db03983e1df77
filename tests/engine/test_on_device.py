"""Calls with arrays in the GPU's memory, beside the same calls with arrays in the host's: the same bits, everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_on_device import OTHER_STREAM, ArrayOnDevice, there
from counting_device import CountingDevice
from cuda_devices import device_of, use_for_gpus
from cuda_on_cpu import CpuDevice
from quick import quick

import kvemb
from kvemb import registry
from kvemb.backends.cuda.device import Program
from kvemb.backends.cuda.staging import PIECE_BYTES
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.optimizers import LAMB, Adagrad, Adam, Ftrl, Optimizer
from tests.histories import small_spill

KEYS, DIM = 900, 5


class Latest(kvemb.RestrictPolicy):
    """A policy of a user's own."""

    def score(self, old: Any, count: Any, now: float) -> Any:
        return np.maximum(old, now)


POLICIES = {
    "uses": kvemb.FrequencyRestrictPolicy,
    "last use": lambda: kvemb.TimestampRestrictPolicy(clock="steps"),
    "own": Latest,
}


@pytest.fixture
def _gpu_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device_of("cpu")
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:CudaOnCpuTable")


@pytest.fixture
def store(tmp_path: Path, _gpu_on_cpu: None) -> Iterator[kvemb.Store]:
    limits = Limits(**small_spill(8), call_rows=100)
    with kvemb.open(tmp_path / "store", memory_budget="16MiB", limits=limits) as store:
        yield store
        store.check()


def pair(store: kvemb.Store, **how: Any) -> tuple[kvemb.Variable, kvemb.Variable]:
    """Two variables that are made alike, but for their names."""
    start = kvemb.RandomNormal(0.0, 1.0, seed=3)
    how = {"dim": DIM, "devices": "gpu:0", "hot_rows": 128, "initializer": start, "optimizer": Adagrad(0.1), **how}
    one, other = (store.get_variable(name, **how) for name in ("host", "there"))
    return one, other


def assert_equal(one: kvemb.Variable, other: kvemb.Variable) -> None:
    """Assert that two variables have the same rows, slots and scores, and have counted the same.

    Which rows are hot depends on when rows that wait were written, so hits and misses are equal only in sum.
    """
    mine, theirs = (each.export(with_slots=True, with_scores=True) for each in (one, other))
    for column, another in zip(mine, theirs, strict=True):
        np.testing.assert_equal(column, another)
    own, its = one.stats, other.stats
    assert own.hits + own.misses == its.hits + its.misses
    for figure in ("absent", "rows", "rows_hot"):
        assert getattr(own, figure) == getattr(its, figure), figure


def train(one: kvemb.Variable, other: kvemb.Variable, seed: int, steps: int = 8, count: int = 60) -> None:
    """The same calls on both, of which the second gets its arrays on the GPU."""
    chance = np.random.default_rng(seed)
    for step in range(steps):
        keys = chance.zipf(1.2, (count // 4, 4)) % KEYS
        grads = chance.normal(size=(*keys.shape, DIM)).astype(np.float32)
        rows, exists = one.lookup(keys, True)
        got, flags = other.lookup(there(keys), True)
        assert isinstance(got, ArrayOnDevice)
        assert (got.shape, got.dtype, flags.dtype) == (rows.shape, rows.dtype, np.bool_)
        assert got.array.tobytes() == rows.tobytes()
        assert (flags.array == exists).all()
        one.apply_gradients(keys, grads)
        other.apply_gradients(there(keys), there(grads))
        if step % 2:
            one.upsert(keys, grads)
            other.upsert(there(keys), there(grads))
            one.accum(keys, rows, grads, exists)
            other.accum(there(keys), there(rows), there(grads), there(exists))
        if step % 3 == 0:
            one.remove(keys[:2])
            other.remove(there(keys[:2]))


@pytest.mark.parametrize("policy", POLICIES)
def test_arrays_on_the_gpu_give_what_arrays_on_the_host_give(store: kvemb.Store, policy: str) -> None:
    one, other = pair(store, restrict_policy=POLICIES[policy]())
    train(one, other, 1)
    assert one.stats.cold_writes > 0
    assert_equal(one, other)


CASES: list[tuple[Optimizer, str]] = [
    (Adam(0.1, bias_correction="global"), "float64"),
    (Ftrl(0.1), "float32"),
    (LAMB(0.1, clip_norm=1.0), "float16"),
]


@pytest.mark.parametrize(("optimizer", "dtype"), CASES, ids=["Adam", "Ftrl", "LAMB"])
def test_every_kind_of_step_has_the_same_bits(store: kvemb.Store, optimizer: Optimizer, dtype: str) -> None:
    one, other = pair(store, optimizer=optimizer, value_dtype=dtype, key_dtype="int32")
    chance, slots = np.random.default_rng(2), one.get_slot_variables()[0].value_dtype
    for _ in range(4):
        keys = chance.integers(-99, 99, 90).astype(np.int32)
        grads = chance.normal(size=(90, DIM)).astype(slots)
        values = chance.normal(size=(90, DIM)).astype(dtype)
        one.apply_gradients(keys, grads)
        other.apply_gradients(there(keys), there(grads))
        one.upsert(keys, values)
        other.upsert(there(keys), there(values))
        assert other.lookup(there(keys)).array.tobytes() == one.lookup(keys).tobytes()
    assert_equal(one, other)


def test_a_step_on_no_keys_counts_as_little_as_on_the_host(store: kvemb.Store) -> None:
    one, other = pair(store, optimizer=Adam(0.1, bias_correction="global"))
    for count in (0, 3, 0, 0, 2):
        keys, grads = np.arange(count), np.ones((count, DIM), np.float32)
        one.apply_gradients(keys, grads)
        other.apply_gradients(there(keys), there(grads))
    assert_equal(one, other)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingDevice:
    device_of("cpu")
    device = CountingDevice()
    use_for_gpus(monkeypatch, device)
    return device


def test_a_step_on_hot_rows_waits_once_a_call_and_brings_eight_bytes(counting: CountingDevice, tmp_path: Path) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        var = store.get_variable("rows", dim=DIM, devices="gpu:0", optimizer=Adam(0.1), init_size=1024)
        keys = np.arange(200) % 150
        grads = np.ones((200, DIM), np.float32)
        var.upsert(keys, grads)
        var.apply_gradients(there(keys), there(grads))
        given, gradients, out = there(keys), there(grads), there(grads)
        counting.start()
        var.lookup(given, out=out)
        assert (counting.waits, counting.downloads, counting.uploads) == (1, [8], [])
        var.apply_gradients(given, gradients)
        assert (counting.waits, counting.downloads, counting.uploads) == (2, [8, 8], [])
        var.upsert(given, gradients)
        var.accum(given, gradients, gradients, there(np.ones(200, bool)))
        assert (counting.waits, counting.downloads, counting.uploads) == (4, [8] * 4, [])


def test_a_lookup_and_its_step_wait_once_and_bring_eight_bytes(counting: CountingDevice, tmp_path: Path) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        how = {"dim": DIM, "optimizer": Adam(0.1), "init_size": 1024}
        plain, var = store.get_variable("plain", **how), store.get_variable("rows", devices="gpu:0", **how)
        ids = np.arange(200).reshape(20, 10) % 150
        for each in (plain, var):
            each.upsert(ids, np.ones((20, 10, DIM), np.float32))
        given = there(ids)
        for seed in range(3):
            grads = np.random.default_rng(seed).normal(size=(20, 10, DIM)).astype(np.float32)
            gradients = there(grads)
            counting.start()
            found = kvemb.embedding_lookup(var, given)
            given.array[:] = 0  # the caller's again
            found.apply_gradients(gradients)
            assert (counting.waits, counting.downloads, counting.uploads) == (1, [8], [])
            given.array[:] = ids
            here = kvemb.embedding_lookup(plain, ids)
            assert found.values.array.tobytes() == here.values.tobytes()
            here.apply_gradients(grads)
        assert var.lookup(ids).tobytes() == plain.lookup(ids).tobytes()
        assert var.lookup_slot("m", ids).tobytes() == plain.lookup_slot("m", ids).tobytes()


def at_offset(array: Any, offset: int) -> ArrayOnDevice:
    """A copy that begins so many bytes after a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return ArrayOnDevice(found)


SHAPES = [
    ("int8", 16, "uint64"), ("float32", 3, "int32"),
    ("float32", 4, "int64"), ("float16", 8, "int32"), ("float64", 1, "uint64"), ("float16", 3, "int64"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "dim", "kind"), quick(SHAPES, 2, several=True))
def test_callers_arrays_may_begin_anywhere(store: kvemb.Store, dtype: str, dim: int, kind: str) -> None:
    """Kernels check each address (cuda_on_cpu.py). Of the rows, some are cold."""
    trained = dtype != "int8"
    how: dict[str, Any] = {} if trained else {"optimizer": None, "initializer": None}
    one, other = pair(store, dim=dim, value_dtype=dtype, key_dtype=kind, **how)
    chance = np.random.default_rng(dim)
    for items in range(4):
        keys, exists = chance.integers(0, 300, 90).astype(kind), chance.random(90) < 0.7
        old, new = chance.integers(-9, 9, (2, 90, dim)).astype(dtype)
        grads = new.astype(np.float64 if dtype == "float64" else np.float32)
        for name, *arrays in [("upsert", new), ("accum", old, new, exists), ("apply_gradients", grads)][: 2 + trained]:
            getattr(one, name)(keys, *arrays)
            getattr(other, name)(*(at_offset(array, items * array.itemsize) for array in (keys, *arrays)))
        out = at_offset(old, items * old.itemsize)
        other.lookup(at_offset(keys, items * keys.itemsize), out=out)
        assert out.array.tobytes() == one.lookup(keys).tobytes()
    assert_equal(one, other)
    with pytest.raises(ValueError, match=f"keys must be aligned to {keys.itemsize} bytes on a GPU"):
        other.lookup(at_offset(keys, keys.itemsize // 2))


def test_rows_move_between_tiers_on_a_stream_of_the_tables_own(counting: CountingDevice, tmp_path: Path) -> None:
    """So the caller's stream, on which a model may be at work meanwhile, has only what its rows need."""
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        var = store.get_variable("rows", dim=DIM, devices="gpu:0", optimizer=Adam(0.1), hot_rows=128)
        keys, grads = np.arange(600), np.ones((600, DIM), np.float32)
        var.apply_gradients(keys, grads)
        counting.start()
        for start in (0, 300, 0):
            var.lookup(there(keys[start : start + 300]))
            var.apply_gradients(there(keys[start : start + 300]), there(grads[start : start + 300]))
        by_stream = {stream: {name for name, on in counting.ran if on == stream} for _, stream in counting.ran}
        (own,) = by_stream.keys() - {OTHER_STREAM}
        steps = {"group_cells", "sum_gradients", "sum_many_gradients", "step"}
        assert by_stream[OTHER_STREAM] == {"find", "take_rows", "spread_rows"} | steps
        assert "insert" in by_stream[own]
        assert max(counting.pinned_sizes) <= PIECE_BYTES
        before = len(counting.pinned_sizes)
        var.lookup(there(keys[:300]))
        assert len(counting.pinned_sizes) == before


class NoCompiler(CpuDevice):
    """A device that can load nothing more when a test says so."""

    spent = False

    def load(self, source: str) -> Program:
        if self.spent and source not in self._programs:
            raise RuntimeError("no space left on device")
        return super().load(source)


@pytest.mark.parametrize("given", [there, np.asarray], ids=["on the GPU", "on the host"])
@pytest.mark.parametrize("call", ["accum", "apply_gradients"])
def test_kernels_that_cannot_be_loaded_fail_a_call_before_it_changes_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, given: Any
) -> None:
    device_of("cpu")
    device = NoCompiler()
    use_for_gpus(monkeypatch, device)
    keys, values = np.arange(40), np.ones((40, DIM), np.float32)
    arrays = [0 * values, values, np.ones(40, bool)] if call == "accum" else [values]
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        var = store.get_variable("rows", dim=DIM, devices="gpu:0", optimizer=LAMB(0.1))
        var.upsert(keys, values)
        device.spent = True
        with pytest.raises(RuntimeError, match="no space left"):
            getattr(var, call)(given(keys), *map(given, arrays))
        device.spent = False
        assert inside(store).state.cause is None
        assert (var.lookup(keys) == values).all()
        getattr(var, call)(given(keys), *map(given, arrays))
        assert (var.lookup(keys) != values).all()
