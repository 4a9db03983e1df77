"""Rows in memory, and the memory that memtables share."""

from __future__ import annotations

import numpy as np
import pytest
from table_readers import SCHEMA, opened, rows_at

from kvemb.backends.memtables import Memory, Memtable
from kvemb.options import RocksDBCreator


def test_the_last_row_of_a_key_is_found_and_kept():
    random, table, model = np.random.default_rng(1), Memtable(SCHEMA, 5000), dict[int, int]()
    for moment in range(40):
        keys = random.integers(-300, 300, random.integers(0, 120))
        table.put(rows_at(keys, moment))
        model.update(dict.fromkeys(keys.tolist(), moment))
        places = table.find(every := np.arange(-310, 310))
        assert {key for key, place in zip(every.tolist(), places.tolist(), strict=True) if place >= 0} == model.keys()
        found = table.block.select(places[places >= 0])
        assert dict(zip(found.keys.tolist(), found.scores.tolist(), strict=True)) == model
    _, places = table.in_order()
    rows = table.block.select(places)
    assert rows.keys.tolist() == sorted(model)
    assert rows.scores.tolist() == [model[key] for key in sorted(model)]


def test_memory_is_made_by_flushes_of_the_largest():
    flushed: list[int] = []

    def flush() -> None:
        flushed.append(memory.used)
        memory.give_back(memory.used)

    memory = Memory(100, flush)
    for nbytes in (60, 40, 1, 500, 10):
        memory.take(nbytes)
    assert flushed == [100, 1, 500]
    assert memory.used == 10


def test_memory_is_not_taken_if_the_flush_fails():
    def flush() -> None:
        raise OSError("full")

    memory = Memory(100, flush)
    memory.take(80)
    with pytest.raises(OSError, match="full"):
        memory.take(21)
    assert memory.used == 80


def test_a_write_that_fails_gives_its_memory_back(tmp_path, monkeypatch):
    database = opened(tmp_path)
    store = database.create("table", SCHEMA, RocksDBCreator())
    with monkeypatch.context() as patch:
        patch.setattr(Memtable, "put", failing)
        with pytest.raises(MemoryError):
            store.write(rows_at([1], 1))
    assert store._memory.used == 0
    store.write(rows_at([1], 1))
    assert store._memory.used == store.memory_bytes > 0
    database.close()


def failing(*args):
    raise MemoryError
