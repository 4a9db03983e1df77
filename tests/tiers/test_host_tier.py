"""Rows on a device, in the host's memory below it, and on disk: what a store of three tiers gives, writes and says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import nothing_grows

import kvemb
from kvemb import registry
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.tiers.hot_tables import HotTables
from tests.histories import small_spill

KEYS = 400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kvemb.Store]:
    """A store whose budget is nearly spent; a device has 16 rows."""
    monkeypatch.setitem(registry.hot_backends, "gpu", "device_table:SmallTable")
    with kvemb.open(tmp_path / "store", memory_budget="4MiB", limits=Limits(**small_spill(8))) as store:
        host = inside(store).budgets.host
        plain = made(store, "plain", hot_rows=KEYS)
        store.get_variable("other", dim=8, hot_rows=(host.free - host.total // 32) // (8 * 4 + 26))
        nothing_grows(store)
        tiered = made(store, "tiered", devices="gpu:0", init_size=1)
        assert [table.capacity_rows for table in tables(tiered).tables] == [16, 16]
        assert len(plain.tables) == len(tiered.tables) == 1
        fixed = made(store, "fixed", devices="gpu:0", hot_rows=16)
        assert len(tables(fixed).tables) == 1, "with a number of rows there is none below"
        yield store
        store.check()


def made(store: kvemb.Store, name: str, **how: Any) -> kvemb.Variable:
    start, rule = kvemb.RandomNormal(0.0, 1.0, seed=3), kvemb.optimizers.Adagrad(0.1)
    policy = kvemb.TimestampRestrictPolicy(clock="steps")
    return store.get_variable(name, dim=4, initializer=start, optimizer=rule, restrict_policy=policy, **how)


def tables(variable: kvemb.Variable) -> HotTables:
    return inside(variable).hot_tables


def train(store: kvemb.Store, chance: Any, steps: int) -> None:
    """The same steps on both variables, whose rows must stay equal."""
    plain, tiered = (store.variables[name] for name in ("plain", "tiered"))
    for _ in range(steps):
        keys = chance.zipf(1.2, 25) % KEYS
        grads = chance.normal(size=(25, 4)).astype(np.float32)
        assert plain.lookup(keys).tobytes() == tiered.lookup(keys).tobytes()
        for variable in (plain, tiered):
            variable.apply_gradients(keys, grads)


def assert_equal(store: kvemb.Store) -> None:
    """Assert that both variables have the same rows, slots and scores."""
    one, other = (store.variables[name].export(with_slots=True, with_scores=True) for name in ("plain", "tiered"))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_equal(mine, theirs)


def test_rows_move_up_and_down_and_are_the_same_also_in_checkpoints_that_are_written_meanwhile(
    store: kvemb.Store, tmp_path: Path
) -> None:
    chance, pending = np.random.default_rng(1), []
    for turn in range(5):
        train(store, chance, 10)
        pending.append(store.checkpoint(tmp_path / f"{turn}", block=False))
    train(store, chance, 10)
    device, below = tables(store.variables["tiered"]).tables
    assert (device.size, below.size) == (16, 16)
    assert not np.isin(device.keys(), below.keys()).any()
    assert store.variables["tiered"].stats.rows_hot == 32
    assert device.scores(device.occupied()).min() >= np.median(below.scores(below.occupied()))
    assert_equal(store)
    sizes = []
    for taken in pending:
        with kvemb.open(taken.result(), read_only=True) as checkpoint:
            assert_equal(checkpoint)
            sizes.append(checkpoint.variables["tiered"].size())
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
