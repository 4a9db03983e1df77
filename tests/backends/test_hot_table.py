"""What contracts.HotTable promises of rows and cells, for every implementation; one that is not here is skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hot_suite import (
    EXTREMES,
    assert_holds,
    assert_same,
    one_bucket,
    random_keys,
    rows_of,
)
from schemas import schema_of

from kvemb.backends.cpu import PART_CELLS, CpuTable
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.schema import VALUE_DTYPES, Schema

# Finding.


def test_every_int64_is_a_key(kind):
    table = kind(schema_of(), 64, 64)
    rows = rows_of(table.schema, EXTREMES, 1.0)
    assert (table.find(EXTREMES) == -1).all()
    assert len(table.insert(rows)) == 0
    assert_holds(table, rows)
    assert table.size == len(EXTREMES)
    assert (table.find(EXTREMES + 7) == -1).all()


def test_empty_batches_change_nothing(kind):
    schema = schema_of()
    table = kind(schema, 16, 16)
    none = np.empty(0, np.int64)
    no_rows = np.empty((0, 3), np.float32)
    assert len(table.find(none)) == 0
    assert len(table.lookup(none, no_rows, ScoreRule.COUNT, 1.0)) == 0
    assert len(table.upsert(none, no_rows, 1)) == 0
    assert len(table.insert(RowBlock(schema, 0))) == 0
    table.remove(none)
    assert table.size == 0
    assert len(table.occupied()) == 0
    assert list(table.dirty_batches(4)) == []


def test_a_row_of_zeros_is_a_row(kind):
    table = kind(schema_of(), 16, 16)
    table.insert(RowBlock(table.schema, 1))
    assert table.find(np.array([0, 1])).tolist() == [table.occupied()[0], -1]


@pytest.mark.independent
@pytest.mark.parametrize("name", VALUE_DTYPES)
@pytest.mark.parametrize("dim", [1, 3, 33])
def test_rows_of_every_dtype_are_copied_out(kind, name, dim):
    schema = schema_of(name, dim)
    table = kind(schema, 256, 256)
    rows = rows_of(schema, random_keys(100), 1.0)
    table.insert(rows)
    wanted = np.concatenate([rows.keys[::-1], [5, 6], rows.keys[:3]])
    out = np.zeros((len(wanted), dim), schema.value_dtype)
    assert table.lookup(wanted, out, None, 0.0).tolist() == [100, 101]
    embeddings = rows.embeddings()
    assert out[:100].tobytes() == np.ascontiguousarray(embeddings[::-1]).tobytes()
    assert out[102:].tobytes() == embeddings[:3].tobytes()
    assert not out[100:102].tobytes().strip(b"\0")


@pytest.mark.parametrize("counts", [None, np.array([5, 1, 7, 100])], ids=["one each", "several each"])
def test_a_lookup_records_the_uses_of_each_occurrence_as_the_rule_says(kind, counts):
    schema, wanted, out = schema_of(), np.array([1, 2, 1, 9]), np.empty((4, 3), np.float32)
    counted = [12.0, 21.0, 30.0] if counts is None else [22.0, 21.0, 30.0]
    for rule, expected in [
        *((None, [10.0, 20.0, 30.0]), (ScoreRule.CUSTOM, [10.0, 20.0, 30.0])),
        *((ScoreRule.COUNT, counted), (ScoreRule.LAST_USE, [77.5, 77.5, 30.0])),
    ]:
        table = kind(schema, 16, 16)
        table.insert(rows_of(schema, [1, 2, 3], [10.0, 20.0, 30.0]))
        assert table.lookup(wanted, out, rule, 77.5, counts).tolist() == [3]
        cells = table.find(np.array([1, 2, 3]))
        assert table.scores(cells).tolist() == expected
        touched = rule in (ScoreRule.COUNT, ScoreRule.LAST_USE)
        assert table.read(cells).flags.tolist() == [DIRTY * touched, DIRTY * touched, 0]


def test_a_use_lowers_no_score_when_the_clock_goes_back(kind):
    table, keys, out = kind(schema_of(), 16, 16), np.array([1, 2, 3]), np.empty((3, 3), np.float32)
    table.insert(rows_of(schema_of(), keys, [10.0, 20.0, 30.0]))
    table.lookup(keys, out, ScoreRule.LAST_USE, 20.5)
    assert table.scores(table.find(keys)).tolist() == [20.5, 20.5, 30.0]
    none = np.empty(0, np.float32)
    bags = Bags(np.array([0, 2, 3]), none, none, np.inf)
    table.pool(keys, bags, None, out[:2], ScoreRule.LAST_USE, 25.0)
    table.pool(keys, bags, None, out[:2], ScoreRule.LAST_USE, 7.0)
    assert table.scores(table.find(keys)).tolist() == [25.0, 25.0, 30.0]


@pytest.mark.parametrize("name", VALUE_DTYPES)
def test_upsert_sets_the_embeddings_it_finds_and_nothing_else(kind, name):
    schema = schema_of(name)
    table = kind(schema, 64, 64)
    before = rows_of(schema, np.arange(20), 4.0)
    table.insert(before)
    keys = np.array([3, 100, 4, 3])
    values = np.arange(12).reshape(4, 3).astype(schema.value_dtype)
    assert table.upsert(keys, values, 9).tolist() == [1]
    after = table.read(table.find(before.keys))
    assert after.embeddings()[3].tolist() == values[3].tolist()
    assert after.embeddings()[4].tolist() == values[2].tolist()
    np.testing.assert_array_equal(after.slot(0), before.slot(0))
    np.testing.assert_array_equal(after.scores, before.scores)
    changed = np.isin(before.keys, [3, 4])
    assert after.steps.tolist() == np.where(changed, 9, before.steps).tolist()
    assert after.flags.tolist() == np.where(changed, DIRTY, 0).tolist()
    assert_same(after.select(~changed), before.select(~changed))


# Removing, and collecting.


def test_removed_rows_are_gone_and_their_cells_free(kind):
    schema = schema_of()
    table = kind(schema, 256, 256)
    rows = rows_of(schema, np.arange(100), dirty=True)
    table.insert(rows)
    cells = table.find(np.array([3, 500, 7]))
    table.remove(cells)
    table.remove(cells)
    assert table.size == 98
    assert table.find(np.array([3, 7])).tolist() == [-1, -1]
    assert not np.isin(cells, table.occupied()).any()
    assert_holds(table, rows.select(~np.isin(rows.keys, [3, 7])))
    assert sum(len(block) for _, block in table.dirty_batches(1000)) == 98
    table.insert(rows_of(schema, [3]))
    assert table.size == 99
    table.clear()
    assert table.size == 0
    assert (table.find(rows.keys) == -1).all()
    assert len(table.occupied()) == 0
    assert list(table.dirty_batches(10)) == []


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_dirty_rows_are_collected_in_the_order_of_cells(kind, limit):
    schema = schema_of()
    table = kind(schema, 256, 512)
    rows = rows_of(schema, np.arange(150), dirty=np.arange(150) % 3 == 0)
    table.insert(rows)
    batches = list(table.dirty_batches(limit))
    assert all(0 < len(cells) == len(block) <= limit for cells, block in batches)
    cells = np.concatenate([cells for cells, _ in batches])
    assert (np.diff(cells) > 0).all()
    keys = np.concatenate([block.keys for _, block in batches])
    assert sorted(keys.tolist()) == list(range(0, 150, 3))
    for cells, block in batches:
        assert_same(block, table.read(cells))
    batches[0][1].words[:] = 0
    assert_holds(table, rows)


def test_rows_go_where_they_are_told_to_after_removal_and_growth(kind):
    # A long random life against a dict, no eviction allowed.
    schema = schema_of("float64", 2)
    table = kind(schema, 16, 16 << 9)
    random = np.random.default_rng(6)
    held: dict[int, float] = {}
    for _ in range(60):
        keys = np.setdiff1d(random.integers(-5000, 5000, random.integers(0, 150)), list(held))
        scores = random.random(len(keys))
        assert len(table.insert(rows_of(schema, keys, scores), reserve=lambda nbytes: True)) == 0
        held.update(zip(keys.tolist(), scores.tolist(), strict=True))
        gone = random.choice(sorted(held), len(held) // 5, replace=False).astype(np.int64)
        table.remove(table.find(gone))
        for key in gone.tolist():
            del held[key]
        assert table.size == len(held)
        assert (table.find(gone) == -1).all()
    assert_holds(table, rows_of(schema, list(held), list(held.values())))


# By cell.


def test_rows_are_read_and_put_whole(kind):
    schema = schema_of()
    table = kind(schema, 64, 64)
    rows = rows_of(schema, np.arange(30), 1.0)
    table.insert(rows)
    read = table.read(table.find(np.array([7, 3])))
    assert_same(read, rows.select([7, 3]))
    read.words[:] = 0
    assert_holds(table, rows)
    changed = rows_of(schema, [3, 7], 5.0, dirty=True)
    changed.words[:] += np.uint64(1)
    table.put(table.find(changed.keys), changed)
    assert_holds(table, changed)
    assert_holds(table, rows.select(~np.isin(rows.keys, [3, 7])))


def test_scores_are_set_and_the_rows_are_dirty(kind):
    schema = schema_of()
    table = kind(schema, 64, 64)
    table.insert(rows_of(schema, np.arange(5), 1.0))
    cells = table.find(np.array([4, 1]))
    table.set_scores(cells, np.array([8.0, 9.0]))
    assert table.scores(table.find(np.arange(5))).tolist() == [1.0, 9.0, 1.0, 1.0, 8.0]
    assert table.read(table.find(np.arange(5))).flags.tolist() == [0, DIRTY, 0, 0, DIRTY]
    table.mark_clean(cells)
    assert not table.read(table.occupied()).flags.any()


# What a snapshot marks.


def marked_table(kind: Any, schema: Schema) -> Any:
    """Rows 0 to 9, the even ones dirty and pending."""
    table = kind(schema, 64, 64)
    table.insert(rows_of(schema, np.arange(10), 1.0, dirty=np.arange(10) % 2 == 0))
    assert sorted(table.mark_dirty_pending().tolist()) == [0, 2, 4, 6, 8]
    return table


def flags_of(table: Any, keys: Any) -> Any:
    return table.read(table.find(np.array(keys))).flags.tolist()


def test_dirty_rows_are_marked_pending_and_others_are_not(kind):
    table = marked_table(kind, schema_of())
    assert flags_of(table, [0, 1]) == [DIRTY | PENDING, 0]
    table.take_pending(table.find(np.array([4])))
    table.release_all()
    assert flags_of(table, [0, 1, 4]) == [DIRTY, 0, DIRTY]


def test_dirty_rows_of_a_large_table_are_found_and_marked_part_by_part():
    table = CpuTable(schema_of(dim=1, widths=()), 2 * PART_CELLS, 2 * PART_CELLS)
    table.insert(rows_of(table.schema, random_keys(1000), dirty=np.arange(1000) % 2 == 0))
    cells = table.occupied()
    before = table.flags(cells)
    dirty = table.keys(cells[before == DIRTY]).tolist()
    assert [key for _, rows in table.dirty_batches(300) for key in rows.keys.tolist()] == dirty
    assert table.mark_dirty_pending().tolist() == dirty
    assert table.flags(cells).tolist() == (before + PENDING * (before == DIRTY)).tolist()
    table.release_all()
    assert table.flags(cells).tolist() == before.tolist()


def test_pending_rows_are_taken_once_and_are_clean_when_written(kind):
    schema = schema_of()
    table = marked_table(kind, schema)
    keys = np.array([4, 1, 99, 2])
    positions, rows = table.take_pending(table.find(keys))
    assert positions.tolist() == [0, 3]
    assert rows.keys.tolist() == [4, 2]
    np.testing.assert_array_equal(rows.words, rows_of(schema, [4, 2]).words)
    assert flags_of(table, [4, 2, 1]) == [DIRTY | WRITING, DIRTY | WRITING, 0]
    assert len(table.take_pending(table.find(keys))[0]) == 0
    table.release_pending(table.find(np.array([2])))  # it changes before it is written
    table.mark_written(table.find(keys))
    assert flags_of(table, [4, 2, 0]) == [0, DIRTY, DIRTY | PENDING]


def test_rows_about_to_change_are_released_once_each(kind):
    schema = schema_of()
    table = marked_table(kind, schema)
    table.take_pending(table.find(np.array([8])))
    before = rows_of(schema, [0, 6], 1.0)
    rows = table.release_pending(table.find(np.array([6, 0, 77, 6, 3, 8])))
    assert sorted(rows.keys.tolist()) == [0, 6], "8 was taken already, 3 was clean, 77 is not there"
    np.testing.assert_array_equal(rows.select(np.argsort(rows.keys)).words, before.words)
    assert flags_of(table, [0, 6, 8, 2]) == [DIRTY, DIRTY, DIRTY, DIRTY | PENDING]
    assert len(table.release_pending(table.find(np.array([6, 0])))) == 0


def test_marks_leave_with_the_row(kind):
    schema = schema_of()
    table = one_bucket(kind, schema)
    count = table.capacity_rows
    table.insert(rows_of(schema, np.arange(count), dirty=True))
    table.mark_dirty_pending()
    left = table.insert(rows_of(schema, np.arange(1000, 1000 + count), 1.0))
    assert left.flags.tolist() == [DIRTY | PENDING] * count
    assert not table.read(table.occupied()).flags.any()
