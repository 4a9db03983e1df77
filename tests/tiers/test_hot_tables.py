"""Several hot tables seen as one: who owns a key, and what a partitioner may answer."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb import registry
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.schema import Schema, dtype_of
from kvemb.tiers.budget import Budget
from kvemb.tiers.hot_tables import HotTables, default_partitioner

KEYS = np.array([-7, -1, 0, 1, 2, 3, 2**63 - 1, -(2**63)])


def tables_of(count, partitioner=default_partitioner, key="int64", capacity=64, least_rows=None):
    schema = Schema(dtype_of(key), dtype_of("float32"), 2)
    tables = [registry.hot_table("cpu")(schema, capacity, 16 * capacity) for _ in range(count)]
    return HotTables(tables, partitioner, schema.key_dtype, [Budget(64 << 20)] * count, least_rows=least_rows)


def rows_of(hot_tables, keys, *, dirty=False):
    rows = RowBlock(hot_tables.tables[0].schema, len(keys))
    rows.keys[:] = keys
    rows.flags[:] = DIRTY * dirty
    return rows


def insert(hot_tables, rows):
    """Insert, and return the rows that left."""
    return [left for _, left in hot_tables.insert(rows, hot_tables.owners(rows.keys)) if len(left)]


def test_the_default_partitioner_is_the_floors_remainder():
    assert default_partitioner(KEYS, 3).tolist() == [int(key) % 3 for key in KEYS]
    assert default_partitioner(KEYS.view(np.uint64), 3).tolist() == [int(key) % 2**64 % 3 for key in KEYS]


def test_rows_go_to_the_table_of_their_key():
    hot_tables = tables_of(3)
    assert insert(hot_tables, rows_of(hot_tables, KEYS)) == []
    for number, table in enumerate(hot_tables.tables):
        owned = [int(key) for key in KEYS if key % 3 == number]
        assert sorted(table.keys().tolist()) == sorted(owned)
    assert hot_tables.size == len(KEYS)
    assert hot_tables.nbytes == sum(table.nbytes for table in hot_tables.tables)
    sought = np.concatenate([KEYS, [99]])
    cells = hot_tables.find(sought, hot_tables.owners(sought))
    assert (cells[:-1] >= 0).all()
    assert cells[-1] == -1
    assert sorted(int(at) for _, positions in hot_tables.by_table(hot_tables.owners(KEYS)) for at in positions) == list(
        range(len(KEYS))
    )


def test_rows_are_removed_from_all_tables_or_from_none(monkeypatch):
    hot_tables = tables_of(2)
    insert(hot_tables, rows_of(hot_tables, KEYS))

    def fail(keys):
        raise MemoryError

    owners = hot_tables.owners(KEYS)
    with monkeypatch.context() as patch:
        patch.setattr(hot_tables.tables[1], "find", fail)
        with pytest.raises(MemoryError):
            hot_tables.remove(KEYS, owners)
    assert (hot_tables.find(KEYS, owners) >= 0).all()
    hot_tables.remove(KEYS, owners)
    assert hot_tables.size == 0


def test_one_table_takes_whole_batches():
    hot_tables = tables_of(1)
    assert hot_tables.owners(KEYS) is None
    assert [positions for _, positions in hot_tables.by_table(hot_tables.owners(KEYS))] == [slice(None)]
    assert len(hot_tables.find(np.empty(0, np.int64), None)) == 0


def test_rows_that_leave_are_gathered_from_every_table():
    hot_tables = tables_of(2, capacity=16)
    left = insert(hot_tables, rows_of(hot_tables, np.arange(200), dirty=True))
    assert hot_tables.size + sum(map(len, left)) == 200
    assert hot_tables.size == 32


def test_growth_is_paid_for_by_the_budget():
    hot_tables = tables_of(2, capacity=16, least_rows=16)
    assert insert(hot_tables, rows_of(hot_tables, np.arange(200), dirty=True)) == []
    assert hot_tables.size == 200


def test_a_partitioner_sees_keys_in_their_own_dtype():
    seen = []

    def spy(keys, count):
        seen.append((keys.dtype, keys.tolist(), count))
        return np.zeros(len(keys), np.int8)

    tables_of(2, spy, "uint64").owners(np.array([-1, 5]))
    tables_of(2, spy, "int32").owners(np.array([-1, 5]))
    assert seen == [(np.dtype("uint64"), [2**64 - 1, 5], 2), (np.dtype("int32"), [-1, 5], 2)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        *(([0, 2], "from 0 to 1, got 0 to 2"), ([-1, 0], "from 0 to 1, got -1 to 0"), ([0.0, 1.0], "integer array")),
        *(([0], "integer array of shape"), (0, "integer array of shape"), ([True, False], "integer array")),
        ([[0, 1]], "integer array of shape"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("count", [1, 2])
def test_other_answers_of_a_partitioner_are_refused(answer, message, count):
    if count == 1:
        message = message.replace("from 0 to 1", "from 0 to 0")
    with pytest.raises(ValueError, match=message):
        tables_of(count, lambda keys, n: answer).owners(np.array([5, 6]))


def test_lists_and_any_integers_are_answers():
    for answer in ([1, 0], np.array([1, 0], np.uint8), (1, 0)):
        assert tables_of(2, lambda keys, n, answer=answer: answer).owners(np.array([5, 6])).tolist() == [1, 0]
