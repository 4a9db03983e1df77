"""A table on 1, 2, 4 or 7 shards is bit for bit the table of one store, whatever the calls: random histories."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from stress.lockstep import check_same
from twins import Fading

import kvemb
import kvemb.cluster
from kvemb.limits import Limits
from tests.histories import small_spill

EXAMPLES = int(os.environ.get("KVEMB_EXAMPLES", 3))
LIMITS = Limits(**small_spill(16), call_rows=24, crowded_files=10_000)
SHARDS = (1, 2, 4, 7)
EXTREMES = [-(2**31), 2**31 - 1]
optimizers = kvemb.optimizers


TRAINED = [
    ("float32", None),
    ("float32", optimizers.SGD(0.25)),
    ("float32", optimizers.Adam(0.1, bias_correction="global", clip_norm=1.0)),
    ("float32", optimizers.RowWiseAdagrad(0.5)),
    ("float32", optimizers.Ftrl(0.3)),
    ("float16", optimizers.Adagrad(0.5)),
    ("float64", optimizers.Adam(0.1, bias_correction="row")),
    ("int8", None),
]
POLICIES = [
    None,
    kvemb.TimestampRestrictPolicy(),
    kvemb.TimestampRestrictPolicy("steps"),
    kvemb.FrequencyRestrictPolicy(),
    kvemb.FrequencyRestrictPolicy(half_life=5.0),
    kvemb.TimeToLiveRestrictPolicy(6.0, clock="steps"),
    kvemb.EpochTimestampRestrictPolicy(),
    kvemb.EpochFrequencyRestrictPolicy(),
    kvemb.NormRestrictPolicy(),
    Fading(),
]
INITIALIZERS = [None, kvemb.RandomUniform(), kvemb.TruncatedNormal(0.0, 1.0, seed=3), kvemb.GlorotUniform()]


class World:
    """A plain store and a cluster of each size, which all histories of a test share; and the time."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.now, self.names = 1000.0, count()
        self.store = kvemb.open(self.folder / "store", memory_budget="16MiB", limits=LIMITS)
        how: Any = {"memory_budget": "8MiB", "limits": LIMITS, "scratch": self.folder, "transport": "local"}
        self.clusters = {shards: kvemb.cluster.open(shards=shards, **how) for shards in SHARDS}

    def close(self) -> None:
        for place in (self.store, *self.clusters.values()):
            place.check()
            place.close()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def world():
    made = World()
    with ExitStack() as patched:
        clock = SimpleNamespace(time=lambda: made.now)
        for module in ("kvemb.restrict.policy", "kvemb.cluster.coordination.counting"):
            patched.enter_context(patch(f"{module}.time", clock))
        yield made
        made.close()


KEYS = st.lists(st.one_of(st.integers(0, 40), st.sampled_from(EXTREMES)), max_size=30)
SEEDS = st.integers(0, 2**16)


def make_machine(world: World) -> type[RuleBasedStateMachine]:
    """The machine over a world."""

    class Machine(RuleBasedStateMachine):
        """Two variables of each place, in lockstep. What one gives or raises, the other must."""

        @initialize(
            shards=st.sampled_from(SHARDS),
            trained=st.sampled_from(TRAINED),
            policy=st.sampled_from(POLICIES),
            initializer=st.sampled_from(INITIALIZERS),
            key_dtype=st.sampled_from(["int64", "int32", "uint64"]),
            devices=st.sampled_from([None, ["cpu", "cpu"]]),
        )
        def begin(self, shards, trained, policy, initializer, key_dtype, devices):
            self.cluster = world.clusters[shards]
            self.key_dtype = np.dtype(key_dtype)
            value_dtype, self.optimizer = trained
            whole = value_dtype == "int8"
            self.how = {
                "key_dtype": key_dtype, "value_dtype": value_dtype, "dim": 3, "optimizer": self.optimizer,
                "restrict_policy": policy, "initializer": 7 if whole else initializer, "devices": devices,
                "hot_rows": 32, "trainable": not whole,
            }  # fmt: skip
            self.named = [f"v{next(world.names)}" for _ in range(2)]
            self.pairs = [self._pair(name) for name in self.named]
            self.policy = policy

        def _pair(self, name):
            return world.store.get_variable(name, **self.how), self.cluster.get_variable(name, **self.how)

        def both(self, call):
            """Make a call on both of a pair; returns what they gave."""
            world.now += 0.25
            return [self._outcome(call, each) for each in self.pairs[0]]

        @staticmethod
        def _outcome(call, variable):
            try:
                return call(variable)
            except (ValueError, TypeError) as error:
                return repr(error)

        def keys(self, given):
            return np.array([key % 2**31 if self.key_dtype == np.uint64 else key for key in given], self.key_dtype)

        def values(self, seed, n, dtype=None):
            drawn = np.random.default_rng(seed).standard_normal((n, 3)) * 4
            return drawn.astype(dtype or self.how["value_dtype"])

        @rule(given=KEYS, seed=SEEDS)
        def upsert(self, given, seed):
            keys = self.keys(given)
            self.both(lambda v: v.upsert(keys, self.values(seed, len(keys))))

        @rule(given=KEYS, touch=st.booleans())
        def lookup(self, given, touch):
            keys = self.keys(given)
            (rows, there), (got, exists) = self.both(lambda v: v.lookup(keys, True, touch=touch))
            check_same("rows", got, rows, keys)
            check_same("exists", exists, there, keys)

        @precondition(lambda self: self.optimizer is not None)
        @rule(given=KEYS, seed=SEEDS)
        def train(self, given, seed):
            keys, dtype = self.keys(given), "float64" if self.how["value_dtype"] == "float64" else "float32"
            self.both(lambda v: v.apply_gradients(keys, self.values(seed, len(keys), dtype)))

        @rule(given=KEYS, seed=SEEDS)
        def accum(self, given, seed):
            keys = self.keys(given)
            old, new = self.values(seed, len(keys)), self.values(seed + 1, len(keys))
            exists = np.random.default_rng(seed).random(len(keys)) < 0.6
            self.both(lambda v: v.accum(keys, old, new, exists))

        @rule(given=KEYS)
        def remove(self, given):
            keys = self.keys(given[:5])
            self.both(lambda v: v.remove(keys))

        @rule(chance=st.integers(0, 19))
        def clear(self, chance):
            if chance == 0:
                self.both(lambda v: v.clear())

        @precondition(lambda self: self.policy is not None)
        @rule(given=KEYS)
        def use(self, given):
            keys = self.keys(given)
            self.both(lambda v: v.restrict_policy.apply_update(keys))
            scores, got = self.both(lambda v: v.restrict_policy.status(keys))
            check_same("status", got, scores, keys)

        @precondition(lambda self: hasattr(self.policy, "set_epoch"))
        @rule(epoch=st.integers(0, 3))
        def set_epoch(self, epoch):
            self.both(lambda v: v.restrict_policy.set_epoch(epoch))

        @precondition(lambda self: self.policy is not None)
        @rule(keep=st.integers(0, 45), trigger=st.one_of(st.none(), st.integers(0, 45)))
        def restrict(self, keep, trigger):
            removed, got = self.both(lambda v: v.restrict(keep, trigger=trigger))
            assert removed == got

        @precondition(lambda self: self.how["value_dtype"] != "int8")
        @rule(given=KEYS, norm=st.sampled_from([None, 2.0]), combiner=st.sampled_from(["sum", "mean", "sqrtn"]))
        def pool(self, given, norm, combiner):
            keys = self.keys(given)
            offsets = [0, len(keys) // 3, len(keys) // 3]
            pooled, got = self.both(
                lambda v: kvemb.embedding_lookup_sparse(v, keys, offsets, None, combiner, norm).values
            )
            check_same("pooled", got, pooled)

        @precondition(lambda self: self.optimizer is not None)
        @rule(given=KEYS, seed=SEEDS)
        def many(self, given, seed):
            world.now += 1
            dtype = "float64" if self.how["value_dtype"] == "float64" else "float32"
            first, second = self.keys(given), self.keys(given[::-1][:7])
            found = []
            for at, place in enumerate((world.store, self.cluster)):
                one, other = (pair[at] for pair in self.pairs)
                place.apply_gradients({
                    one: (first, self.values(seed, len(first), dtype)),
                    other.name: (second, self.values(seed, len(second), dtype)),
                })  # fmt: skip
                rows = place.lookup({one: first.reshape(-1, 1), other: second})
                found.append([rows[one], rows[other]])
            for rows, got in zip(*found, strict=True):
                check_same("lookup of many", got, rows)

        def teardown(self):
            if not hasattr(self, "pairs"):
                return
            for one, other in self.pairs:
                for batch in (5, 65_536):
                    wanted = list(one.export_batches(batch, with_slots=True, with_scores=True))
                    given = list(other.export_batches(batch, with_slots=True, with_scores=True))
                    for expected, got in zip(wanted, given, strict=True):
                        for at in (0, 1, 3):
                            check_same("export", got[at], expected[at])
                        for slot in expected[2]:
                            check_same(slot, got[2][slot], expected[2][slot])
                every = np.arange(41, dtype=self.key_dtype)
                for slot in one.get_slot_variables():
                    check_same(slot.name, other.lookup_slot(slot.name, every), one.lookup_slot(slot.name, every))
                steps = [list(kvemb.bulk.scan(each)) for each in (one, other)]
                for expected, got in zip(*steps, strict=True):
                    check_same("steps", got.steps, expected.steps)
                assert [one.size(), one.size(0)] == [other.size(), other.size(0)]

    return Machine


def test_a_table_on_shards_is_the_table_of_one_store(world):
    run_state_machine_as_test(
        make_machine(world),
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=25, deadline=None,
            suppress_health_check=list(HealthCheck), derandomize=False,
        ),
    )  # fmt: skip
