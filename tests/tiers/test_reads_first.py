"""Reads ahead while hot tables, and rows that wait for the disk, have all memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from quick import quick

import kvemb
from kvemb.handle import inside

TABLES, ROWS, BATCH = 6, 20_000, 500


@pytest.mark.parametrize("hot_rows", quick([None, 1000]))
def test_reads_ahead_get_memory_while_rows_wait_for_the_disk(
    open_store: Callable[..., kvemb.Store], tmp_path: Path, hot_rows: int | None
) -> None:
    """Of tables that grow, and of tables of a fixed size, which are never asked for memory."""
    store, chance = open_store(tmp_path / "store", memory_budget="4MiB"), np.random.default_rng(0)
    tables = [store.get_variable(f"field{number}", dim=16, hot_rows=hot_rows) for number in range(TABLES)]
    for start in range(0, ROWS, 1000):
        for table in tables:
            table.upsert(range(start, start + 1000), np.full((1000, 16), start, np.float32))
    given, until = 0, time.monotonic() + 300
    while given < 20 * TABLES and time.monotonic() < until:
        for table in tables:
            batch, ahead = chance.choice(ROWS, BATCH, replace=False), inside(table).storage.ahead
            table.prefetch(batch)
            given = given + 1 if sum(len(fetch.keys) for fetch in ahead._kept) > BATCH // 2 else 0
            rows = table.lookup(batch)
            assert (rows == (batch // 1000 * 1000)[:, None]).all()
            table.upsert(batch, rows)
    assert given >= 20 * TABLES
