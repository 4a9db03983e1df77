"""What contracts.HotTable promises of a table that is full, grows or shrinks, for every implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hot_suite import (
    KINDS,
    LEAST,
    MOST,
    assert_holds,
    assert_same,
    available,
    many,
    one_bucket,
    random_keys,
    rows_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import quick
from schemas import schema_of

from kvemb.backends.cpu import CpuTable
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.schema import Schema

# Inserting and evicting.


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_one_bucket_keeps_the_highest_scores(name, data):
    # All keys of a table of one bucket share it, so a dict that evicts its least (score, key) is the exact model.
    schema = schema_of(dim=1, widths=())
    table = one_bucket(available(name), schema)
    others = rows_of(schema, np.arange(100, 100 + table.capacity_rows - 16), np.inf)  # these never leave
    table.insert(others)
    model: dict[int, tuple[float, bool]] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        fresh = st.integers(-40, 40) | st.sampled_from([LEAST, LEAST + 1, MOST - 1, MOST])
        fresh = fresh.filter(lambda key: key not in model)
        keys = data.draw(st.lists(fresh, unique=True, max_size=30))
        scores = [data.draw(st.sampled_from([-0.0, 0.0, 1.0, 2.0, -np.inf, np.inf])) for _ in keys]
        dirty = [data.draw(st.booleans()) for _ in keys]
        by_score = data.draw(st.booleans())
        expected = []
        for key, score, is_dirty in zip(keys, scores, dirty, strict=True):
            if len(model) == 16:
                victim = min(model, key=lambda k: (model[k][0], k))
                if by_score and not is_dirty and model[victim][0] >= score:
                    continue
                if model.pop(victim)[1]:
                    expected.append(victim)
            model[key] = (score, is_dirty)
        left = table.insert(rows_of(schema, keys, scores, dirty=np.array(dirty, bool)), by_score=by_score)
        assert left.keys.tolist() == expected
        assert table.size == len(model) + len(others)
        assert sorted(table.keys().tolist()) == sorted([*model, *others.keys.tolist()])
        for key in list(model)[: data.draw(st.integers(0, 3))]:
            table.remove(table.find(np.array([key])))
            del model[key]


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0], np.arange(32)])
def test_on_the_cpu_the_lowest_score_of_two_buckets_leaves(scores):
    """Of equal scores, the smallest key."""
    schema, cells, random = schema_of(), CpuTable.cells_per_bucket, np.random.default_rng(2)
    table = CpuTable(schema, 2 * cells, 2 * cells)
    table.insert(rows_of(schema, random_keys(6 * cells), random.choice(scores, 6 * cells)))
    assert table.size == 2 * cells
    both = 0
    for key in random_keys(200, seed=7):
        bucket = [table.read(np.arange(at, at + cells)) for at in (0, cells)]
        lowest = [min(zip(rows.scores.tolist(), rows.keys.tolist(), strict=True)) for rows in bucket]
        left = table.insert(rows_of(schema, [key], random.choice(scores)), clean_too=True)
        assert left.keys.tolist() in [[each] for _, each in lowest]
        both += left.keys.tolist() == [min(lowest)[1]]
    assert both >= 130, "half of the keys have both buckets"


def test_scores_that_are_no_numbers_write_nowhere_else():
    """No caller gives such scores; then a row leaves all the same, and no memory beside the cells is overwritten."""
    table = one_bucket(CpuTable, schema_of())
    rows = rows_of(table.schema, np.arange(16), np.nan)
    table.insert(rows)
    left = table.insert(rows_of(table.schema, [16]), clean_too=True)
    kept = np.setdiff1d(rows.keys, left.keys)
    assert len(left) == 1
    assert_holds(table, rows_of(table.schema, [*kept, 16], [*[np.nan] * 15, 0.0]))


def test_clean_rows_that_are_evicted_are_returned_if_they_are_asked_for(kind):
    schema = schema_of()
    table = one_bucket(kind, schema)
    count = table.capacity_rows
    rows = rows_of(schema, np.arange(count), np.arange(count), dirty=np.arange(count) % 2 == 0)
    table.insert(rows)
    left = table.insert(rows_of(schema, [1000, 1001, 1002], 1e9), clean_too=True)
    assert_same(left, rows.select([0, 1, 2]))
    newcomers = rows_of(schema, [2000, 2001], [0.0, 1e9])
    assert table.insert(newcomers, by_score=True, clean_too=True).keys.tolist() == [3], (
        "2000 does not leave: it stays out"
    )
    assert table.insert(rows_of(schema, [3000, 3001], 1e9)).keys.tolist() == [4]


@pytest.mark.independent
@pytest.mark.parametrize("by_score", quick([True, False]))
@pytest.mark.parametrize(("capacity", "inserted"), [(16, 500), (256, 300), (256, 5000), (1024, 30_000)])
def test_no_dirty_row_is_ever_dropped(kind, capacity, inserted, by_score):
    schema, inserted = schema_of("float16", 3), min(inserted, many(kind))
    table = kind(schema, capacity, capacity)
    keys = random_keys(inserted)
    random = np.random.default_rng(5)
    rows = rows_of(schema, keys, random.integers(0, 9, inserted), dirty=random.random(inserted) < 0.7)
    left = [table.insert(rows.select(slice(at, at + 700)), by_score=by_score) for at in range(0, inserted, 700)]
    here = table.read(table.occupied())
    assert table.size == len(here) <= table.capacity_rows
    dirty = [block.select(block.flags & DIRTY != 0) for block in (here, *left)]
    assert all(len(a) == len(b) for a, b in zip(dirty[1:], left, strict=True)), "only dirty rows are handed back"
    kept = np.concatenate([block.keys for block in dirty])
    assert sorted(kept.tolist()) == sorted(rows.keys[rows.flags & DIRTY != 0].tolist())
    by_key = {int(key): at for at, key in enumerate(keys)}
    for block in (here, *left):
        assert_same(block, rows.select([by_key[int(key)] for key in block.keys]))


def test_a_batch_larger_than_the_table_leaves_it_full(kind):
    schema = schema_of()
    table = kind(schema, 64, 64)
    keys = random_keys(many(kind) // 2)
    left = table.insert(rows_of(schema, keys, 1.0, dirty=True))
    assert table.size == table.capacity_rows
    assert len(left) == len(keys) - table.size
    assert not np.isin(left.keys, table.keys()).any()


# Growing.


def full_table(kind: Any, schema: Schema, capacity: int, load: float) -> Any:
    table = kind(schema, capacity, 4 * capacity)
    wanted = round(load * table.capacity_rows)
    keys, few = random_keys(40 * table.capacity_rows, table.capacity_rows), np.arange(kind.cells_per_bucket // 2)
    for at in range(0, len(keys), len(few)):
        if table.size >= wanted:
            break
        table.insert(rows_of(schema, keys[at + few], 0.0 + at + few, dirty=few % 2 == 0))
    return table


@pytest.mark.independent
@pytest.mark.parametrize("capacity", [16, 48, 80, 1024])
@pytest.mark.parametrize("load", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_growing_keeps_every_row(kind, capacity, load):
    table = full_table(kind, schema_of("float32", 5), capacity, load)
    assert load < 1.0 or table.size == table.capacity_rows
    before = table.read(table.occupied())
    while table.step_rows:
        cells = table.capacity_rows + table.step_rows
        table.grow()
        assert table.capacity_rows == cells <= table.max_capacity_rows
        assert table.size == len(before) == len(table.occupied())
        assert_holds(table, before)
    table.insert(rows_of(before.schema, random_keys(capacity, 77), 1e9))
    with pytest.raises(ValueError, match="cannot grow past"):
        table.grow()


def test_a_table_grows_before_a_row_has_to_leave(kind):
    schema = schema_of()
    table = kind(schema, kind.cells_per_bucket, 1 << 11)
    asked, cells_before = [], table.capacity_rows

    def reserve(cells: int) -> bool:
        asked.append((cells, table.size / table.capacity_rows))
        assert cells == table.step_rows
        return True

    rows = rows_of(schema, random_keys(1500), dirty=True)
    assert len(table.insert(rows, reserve=reserve)) == 0
    assert cells_before + sum(cells for cells, _ in asked) == table.capacity_rows <= 1 << 11
    assert_holds(table, rows)
    assert min(load for _, load in asked) > 0.6, "growth waits until the table is nearly full"
    assert table.nbytes == table.capacity_rows * type(table).bytes_per_cell(schema)


@pytest.mark.independent
@pytest.mark.parametrize("cells", quick([40, 1, 100_000]))
@pytest.mark.parametrize("load", [0.0, 0.3, 0.9, 1.0])
def test_shrinking_lets_only_dirty_rows_out_and_keeps_the_highest_scores(kind, load, cells):
    table = full_table(kind, schema_of("float32", 5), 1024, load)
    before = table.read(table.occupied())
    left = []
    while table.capacity_rows > 256:
        capacity = table.capacity_rows
        left.append(table.shrink(cells, 256))
        assert 256 <= table.capacity_rows < capacity
        bucket = kind.cells_per_bucket
        assert table.capacity_rows == max(256, capacity - -(-cells // bucket) * bucket)
        assert len(table.occupied()) == table.size <= table.capacity_rows
        assert_holds(table, table.read(table.occupied()))
    assert table.capacity_rows == 256
    assert len(table.shrink(cells, 256)) == 0
    assert table.capacity_rows == 256
    kept, gone = table.read(table.occupied()), RowBlock.joined(left, table.schema)
    assert len(np.intersect1d(kept.keys, gone.keys)) == 0
    assert_same(kept, before.select(positions_of(before, kept.keys)))
    assert_same(gone, before.select(positions_of(before, gone.keys)))
    dirty = before.keys[before.flags & DIRTY != 0]
    assert np.isin(dirty, np.concatenate([kept.keys, gone.keys])).all()
    if len(before) > 256:
        rest = before.scores[~np.isin(before.keys, kept.keys)]
        assert table.size == 256
        assert np.median(kept.scores) > np.median(rest)
        assert max(before.scores) in kept.scores
    else:
        assert len(kept) == len(before)
    table.insert(rows_of(table.schema, random_keys(2000, 78), 1e9), reserve=lambda cells: True)
    assert_holds(table, table.read(table.occupied()))


def positions_of(rows: RowBlock, keys: Any) -> Any:
    order = np.argsort(rows.keys)
    return order[np.searchsorted(rows.keys[order], keys)]


def test_marks_of_a_snapshot_stay_with_rows_that_move_or_leave(kind):
    table = full_table(kind, schema_of(), 512, 0.95)
    pending = set(table.mark_dirty_pending().tolist())
    written = random_keys(40 * 512, 512)[:100]
    table.take_pending(table.find(written))
    writing = {key for key in written.tolist() if key in pending}
    left = RowBlock(table.schema, 0)
    while table.capacity_rows > 128:
        left = RowBlock.joined([left, table.shrink(100, 128)], table.schema)
    table.grow()
    rows = RowBlock.joined([left, table.read(table.occupied())], table.schema)
    assert set(rows.keys[rows.flags & PENDING != 0].tolist()) == pending - writing
    assert set(rows.keys[rows.flags & WRITING != 0].tolist()) == writing


def test_a_sample_is_of_rows_that_are_there(kind):
    table = full_table(kind, schema_of(), 512, 0.9)
    keys, scores = table.sample(0.5, 10_000)
    assert_same(table.read(table.find(np.sort(keys))), table.read(table.find(np.sort(table.keys()))))
    np.testing.assert_array_equal(table.scores(table.find(keys)), scores)
    few = [table.sample(at, 100)[0] for at in (0.0, 0.3, 0.99)]
    assert all(0 < len(part) <= 100 and np.isin(part, keys).all() for part in few)
    assert not np.array_equal(few[0], few[2])
    assert len(kind(schema_of(), 64, 64).sample(0.0, 10)[0]) == 0


def test_without_leave_to_grow_rows_are_evicted(kind):
    schema = schema_of()
    for reserve in (None, lambda cells: False):
        table = kind(schema, kind.cells_per_bucket, 1024)
        left = table.insert(rows_of(schema, random_keys(200), dirty=True), reserve=reserve)
        assert table.size <= table.capacity_rows == kind.cells_per_bucket
        assert len(left) + table.size == 200
