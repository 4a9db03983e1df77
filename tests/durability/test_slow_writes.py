"""Checkpoints, marks and the end of a store whose disk is slow, so that writes queue, against a model of its rows.

Memtables of a few rows are sealed while earlier writes wait, and while snapshots are written. A variable in memory
alone takes memory from the others, also during a rollback.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.backends.rocks_store import RocksStore
from kvemb.limits import Limits

LIMITS = Limits(
    memtable_rows=48, min_own_copies=32, max_own_copies=32, copied_rows=256, ahead_rows=16, snapshot_part_bytes=2400,
    table_file_bytes=9000,
)  # fmt: skip
NAMES, KEYS, DIM = ("users", "items"), 1500, 4
Model = dict[str, dict[int, float]]


def copied(model: Model) -> Model:
    return {name: dict(rows) for name, rows in model.items()}


def check(variables: Mapping[str, kvemb.Variable], model: Model) -> None:
    for name, rows in model.items():
        keys, values = variables[name].export()[:2]
        assert dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True)) == rows, name
        assert variables[name].size() == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_slow_disk_mixes_no_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random, write = np.random.default_rng(seed), RocksStore.write

    def slowly(self: RocksStore, rows: Any) -> int:
        time.sleep(random.choice([0, 0.01, 0.02, 0.06]))
        return write(self, rows)

    monkeypatch.setattr(RocksStore, "write", slowly)
    store = kvemb.open(tmp_path / "store", memory_budget="4MiB", limits=LIMITS)
    variables = {name: store.get_variable(name, dim=DIM, hot_rows=256) for name in NAMES}
    beside = store.get_variable("beside", dim=DIM, hot_rows=64, kv_creator=kvemb.MemoryCreator())
    model: Model = {name: {} for name in NAMES}
    pending, then, mark, checked = None, copied(model), None, 0
    for step in range(900):
        name, keys = NAMES[random.integers(2)], random.choice(KEYS, random.integers(1, 120), replace=False)
        act = random.choice(["upsert", "remove", "lookup", "clear"], p=[0.6, 0.15, 0.24, 0.01])
        if act == "upsert":
            variables[name].upsert(keys, np.full((len(keys), DIM), step, np.float32))
            model[name].update(dict.fromkeys(keys.tolist(), float(step)))
        elif act == "remove":
            variables[name].remove(keys)
            model[name] = {key: value for key, value in model[name].items() if key not in set(keys.tolist())}
        elif act == "lookup":
            expected = [model[name].get(key, 0.0) for key in keys.tolist()]
            assert variables[name].lookup(keys)[:, 0].tolist() == expected
        else:
            variables[name].clear()
            model[name].clear()
        beside.upsert(some := np.unique(random.integers(0, 100_000, 60)), np.ones((len(some), DIM), np.float32))
        if pending is not None and pending.done():
            with kvemb.open(pending.result().path, read_only=True, memory_budget="4MiB") as checkpoint:
                check(checkpoint.variables, then)
            pending, checked = None, checked + 1
        if pending is None:
            what = random.random()
            if what < 0.05:
                pending, then = store.checkpoint(tmp_path / f"{step}", block=False), copied(model)
            elif what < 0.06:
                mark = store.mark(), copied(model)
            elif what < 0.07 and mark is not None:
                store.rollback(mark[0])
                model = copied(mark[1])
    check(variables, model)
    store.close()
    assert checked > 3
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        check(store.variables, model)
