"""What contracts.HotTable promises, for every implementation. One that this machine lacks skips itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_devices import DEVICES
from cuda_on_cpu import CudaOnCpuTable, require_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from opaque_table import OpaqueTable
from pooled import pooled
from quick import quick

from kvemb import registry
from kvemb.backends.cpu import CpuTable
from kvemb.backends.cpu_rows import CpuRows
from kvemb.errors import BackendUnavailable
from kvemb.optimizers import Adagrad
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, Beside
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.hashing import Unique
from kvemb.rows.schema import VALUE_DTYPES, Schema, SlotShape, dtype_of

LEAST, MOST = -(2**63), 2**63 - 1
KINDS = ["cpu", "opaque", "cuda-on-cpu", *DEVICES[1:]]
EXTREMES = np.array([0, -1, 1, LEAST, LEAST + 1, MOST, MOST - 1, 2**32, -(2**32), 255, 2**24])


def many(kind: Any) -> int:
    """The rows of a large batch: above CpuTable's threshold for several threads; others have none."""
    return 40_000 if kind is CpuTable else 4_000


def table_kind(name: str) -> Any:
    """A HotTable class."""
    if name == "cuda-on-cpu":
        require_compiler()
    return {"opaque": OpaqueTable, "cuda-on-cpu": CudaOnCpuTable}.get(name) or registry.hot_table(name)


def available(name: str) -> Any:
    """A HotTable class; the test is skipped if this machine lacks it."""
    try:
        kind = table_kind(name)
        kind.memory(name)
        return kind
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Any:
    """Each HotTable class in turn."""
    return available(request.param)


def schema_of(name: str = "float32", dim: int = 3, widths: tuple[int, ...] = (3,)) -> Schema:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    slots = tuple(SlotShape(f"slot{at}", width) for at, width in enumerate(widths))
    return Schema(dtype_of("int64"), dtype_of(name), dim, slots)


def rows_of(schema: Schema, keys: Any, scores: Any = 0.0, *, dirty: Any = False) -> RowBlock:
    """Rows whose bytes are made from their keys, so that a mixed-up row shows."""
    block = RowBlock(schema, len(keys))
    block.keys[:] = keys
    block.scores[:] = scores
    block.steps[:] = block.keys // 3
    block.flags[:] = np.where(dirty, DIRTY, 0)
    with np.errstate(over="ignore"):
        for word in range(schema.row_words):
            block.words[:, word] = (block.keys.view(np.uint64) + np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
    return block


def assert_holds(table: Any, rows: RowBlock) -> None:
    """Assert that the table holds these rows, every column as given."""
    cells = table.find(rows.keys)
    assert (cells >= 0).all()
    assert_same(table.read(cells), rows)


def assert_same(got: RowBlock, expected: RowBlock) -> None:
    for column in ("keys", "scores", "steps", "flags", "words"):
        np.testing.assert_array_equal(getattr(got, column), getattr(expected, column), err_msg=column)


def random_keys(count: int, seed: int = 0) -> Any:
    keys = np.unique(np.random.default_rng(seed).integers(LEAST, MOST, count + 8, dtype=np.int64))
    return np.random.default_rng(seed + 1).permutation(keys)[:count]


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


def test_a_lookup_records_each_occurrence_as_the_rule_says(kind):
    schema = schema_of()
    wanted = np.array([1, 2, 1, 9, 1])
    out = np.empty((5, 3), np.float32)
    for rule, expected in [
        *((None, [10.0, 20.0, 30.0]), (ScoreRule.CUSTOM, [10.0, 20.0, 30.0])),
        *((ScoreRule.COUNT, [13.0, 21.0, 30.0]), (ScoreRule.LAST_USE, [77.5, 77.5, 30.0])),
    ]:
        table = kind(schema, 16, 16)
        table.insert(rows_of(schema, [1, 2, 3], [10.0, 20.0, 30.0]))
        table.lookup(wanted, out, rule, 77.5)
        cells = table.find(np.array([1, 2, 3]))
        assert table.scores(cells).tolist() == expected
        touched = rule in (ScoreRule.COUNT, ScoreRule.LAST_USE)
        assert table.read(cells).flags.tolist() == [DIRTY * touched, DIRTY * touched, 0]


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


# Pooling.


def bags_of(sizes: Any, dtype: Any, *, weighted: bool, divided: bool, most_norm: float = np.inf) -> Bags:
    """Bags of these sizes with some weights and divisors, one divisor 0."""
    offsets, draw = np.concatenate([[0], np.cumsum(sizes)]), np.random.default_rng(7)
    weights = draw.uniform(-1, 2, offsets[-1] if weighted else 0).astype(dtype)
    divisors = draw.integers(0, 4, len(sizes) if divided else 0).astype(dtype)
    return Bags(offsets, weights, divisors, most_norm)


@pytest.mark.parametrize("name", quick(["float32", "float64", "float16", "bfloat16"]))
@pytest.mark.parametrize("dim", [1, 3, 33])
@pytest.mark.parametrize("form", ["plain", "weighted", "divided", "clipped", "all"])
def test_rows_of_a_bag_are_pooled_in_order(kind, name, dim, form):
    schema = schema_of(name, dim)
    table = kind(schema, 256, 256)
    draw = np.random.default_rng(dim)
    rows = rows_of(schema, random_keys(100), 1.0)
    CpuRows().assign(rows, np.arange(100), draw.normal(size=(100, dim)).astype(schema.value_dtype), 0)
    table.insert(rows)
    sizes = [0, 3, 1, 0, 20, 5, 0]
    bags = bags_of(
        sizes, schema.slot_dtype, weighted=form in ("weighted", "all"), divided=form in ("divided", "all"),
        most_norm=0.9 if form in ("clipped", "all") else np.inf,
    )  # fmt: skip
    chosen = draw.integers(0, 100, 29)
    out = np.full((7, dim), 9, schema.value_dtype)
    assert table.pool(rows.keys[chosen], bags, None, out, None, 0.0).tolist() == []
    assert out.tobytes() == pooled(rows.embeddings()[chosen], bags).tobytes()


def test_a_bag_takes_rows_from_beside_the_table_and_names_those_that_are_nowhere(kind):
    schema = schema_of("float32", 2)
    table, rows = kind(schema, 64, 64), rows_of(schema, np.arange(20), 5.0)
    CpuRows().assign(rows, np.arange(20), np.arange(40, dtype=np.float32).reshape(20, 2), 0)
    table.insert(rows)
    keys = np.array([3, 100, 4, 7, 101, 3, 5])
    bags = bags_of([2, 2, 2, 1], np.float32, weighted=False, divided=False)
    out = np.zeros((4, 2), np.float32)
    assert table.pool(keys, bags, None, out, ScoreRule.COUNT, 0.0).tolist() == [1, 4]
    assert out[[1, 3]].tolist() == [[22, 24], [10, 11]]
    assert table.scores(table.find(np.array([3, 4, 7, 5, 8]))).tolist() == [7, 6, 6, 6, 5]
    beside = Beside(np.array([-1, 1, -1, -1, 0, 2, -1]), np.array([[1, 1], [2, 2], [0.5, 0.5]], np.float32))
    assert table.pool(keys, bags, beside, out, ScoreRule.LAST_USE, 9.0).tolist() == []
    assert out.tolist() == [[8, 9], [22, 24], [1.5, 1.5], [10, 11]]
    assert table.scores(table.find(np.array([3, 4, 7, 5, 8]))).tolist() == [9, 9, 9, 9, 5]
    none = bags_of([0, 0], np.float32, weighted=False, divided=False)
    assert len(table.pool(keys[:0], none, None, out[:2], ScoreRule.COUNT, 0.0)) == 0
    assert out[:2].tolist() == [[0, 0], [0, 0]]


def test_a_large_pool_equals_many_small_ones(kind):
    schema, count = schema_of("float32", 5), many(kind)
    keys = random_keys(5000)
    draw = np.random.default_rng(3)
    table, wanted = kind(schema, 8192, 8192), draw.choice(keys, count)
    rows = rows_of(schema, keys, 0.5)
    CpuRows().assign(rows, np.arange(5000), draw.normal(size=(5000, 5)).astype(np.float32), 0)
    table.insert(rows)
    absent = np.sort(draw.choice(count, 50, replace=False))
    wanted[absent] = random_keys(50, 9)
    cuts = np.sort(draw.integers(0, count, count // 10))
    cuts[: count // 50] = 0  # many empty bags, and one large one
    sizes = np.diff(np.concatenate([[0], cuts, [count]]))
    bags = bags_of(sizes, np.float32, weighted=True, divided=True)
    out = np.zeros((len(sizes), 5), np.float32)
    assert table.pool(wanted, bags, None, out, ScoreRule.COUNT, 0.0).tolist() == absent.tolist()
    whole = np.setdiff1d(np.arange(bags.bag_count), bags.holding(absent))
    positions, left = bags.only(whole)
    each = np.zeros((len(positions), 5), np.float32)
    assert len(table.lookup(wanted[positions], each, None, 0.0)) == 0
    assert out[whole].tobytes() == pooled(each, left).tobytes()
    counts = np.array([np.sum(wanted == key) for key in keys[:50]])
    assert table.scores(table.find(keys[:50])).tolist() == (0.5 + counts).tolist()


# Large batches, which an implementation may split over threads.


def test_a_large_lookup_equals_many_small_ones(kind):
    schema, count = schema_of("float32", 5), many(kind)
    keys = random_keys(5000)
    wanted = np.random.default_rng(3).choice(np.concatenate([keys, random_keys(1000, 9)]), count)
    whole, parts = kind(schema, 8192, 8192), kind(schema, 8192, 8192)
    for table in (whole, parts):
        table.insert(rows_of(schema, keys, 0.5))
    out, expected = np.zeros((2, count, 5), np.float32)
    missing = whole.lookup(wanted, out, ScoreRule.COUNT, 0.0)
    assert missing.tolist() == np.flatnonzero(~np.isin(wanted, keys)).tolist()
    for at in range(0, count, 1000):
        part = slice(at, at + 1000)
        found = parts.lookup(wanted[part], expected[part], ScoreRule.COUNT, 0.0)
        np.testing.assert_array_equal(at + found, missing[(missing >= at) & (missing < at + 1000)])
    assert out.tobytes() == expected.tobytes()
    assert_same(whole.read(whole.occupied()), parts.read(parts.occupied()))
    counts = np.array([np.sum(wanted == key) for key in keys[:50]])
    assert whole.scores(whole.find(keys[:50])).tolist() == (0.5 + counts).tolist()


def test_a_large_upsert_takes_duplicates_in_order(kind):
    schema, count = schema_of("float32", 2, ()), many(kind)
    keys = random_keys(300)
    wanted = np.random.default_rng(4).choice(np.concatenate([keys, [LEAST, MOST]]), count)
    values = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    table = kind(schema, 512, 512)
    table.insert(rows_of(schema, keys))
    missing = table.upsert(wanted, values, 1)
    np.testing.assert_array_equal(missing, np.flatnonzero(table.find(wanted) < 0))
    last = {int(key): at for at, key in enumerate(wanted)}
    expected = values[[last[int(key)] for key in keys]]
    np.testing.assert_array_equal(table.read(table.find(keys)).embeddings(), expected)


@pytest.mark.parametrize("dim", [1, 5, 64])
def test_a_large_step_sums_the_gradients_of_a_key_in_order(kind, dim):
    schema, count = schema_of("float32", dim, (dim,)), many(kind)
    chance = np.random.default_rng(dim)
    keys = random_keys(count * 3 // 4)
    batch = chance.choice(keys, count)
    batch[::7] = keys[3]
    grads = chance.normal(size=(count, dim)).astype(np.float32)
    grads[:, 0] = -0.0
    grads.flags.writeable = False  # as an array that a caller maps from a file
    distinct = Unique(batch)
    firsts = set(distinct.sums.first.tolist())
    totals = grads[distinct.sums.first]
    for at in range(count):
        if at not in firsts:
            totals[distinct.inverse[at]] += grads[at]
    together, alone = (kind(schema, 2 * count, 2 * count) for _ in range(2))
    for table in (together, alone):
        table.insert(rows_of(schema, keys))
        rows = table.read(table.occupied())
        rows.values[:] = 1.0
        table.put(table.occupied(), rows)
    cells = together.find(distinct.keys)
    cells[5:9] = -1
    together.apply(cells, Adagrad(0.5), grads, 9, distinct.sums)
    for at in range(0, len(cells), count // 5):
        few = slice(at, at + count // 5)
        alone.apply(cells[few], Adagrad(0.5), totals[few], 9)
    assert_same(together.read(together.occupied()), alone.read(alone.occupied()))
    assert (together.read(together.find(distinct.keys[5:9])).values == 1.0).all()
    assert (together.read(cells[9:]).steps == 9).all()


# Inserting and evicting.


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_one_bucket_keeps_the_highest_scores(name, data):
    # All keys of a table of one bucket share it, so a dict that evicts its least (score, key) is the exact model.
    schema = schema_of(dim=1, widths=())
    table = one_bucket(available(name), schema)
    others = rows_of(schema, np.arange(100, 100 + table.capacity_rows - 16), np.inf)  # these never leave
    table.insert(others)
    model: dict[int, tuple[float, bool]] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        fresh = st.integers(-40, 40).filter(lambda key: key not in model)
        keys = data.draw(st.lists(fresh, unique=True, max_size=30))
        scores = [data.draw(st.sampled_from([0.0, 1.0, 2.0, -np.inf, np.inf])) for _ in keys]
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


def one_bucket(kind: Any, schema: Schema) -> Any:
    """A table of one bucket, which does not grow."""
    return kind(schema, kind.cells_per_bucket, kind.cells_per_bucket)


def test_of_equal_scores_the_smaller_key_leaves(kind):
    schema = schema_of()
    table = one_bucket(kind, schema)
    keys = np.arange(-8, table.capacity_rows - 8)
    table.insert(rows_of(schema, keys[::-1], 5.0, dirty=True))
    left = table.insert(rows_of(schema, [1000, 1001], 5.0))
    assert left.keys.tolist() == [-8, -7]
    assert_same(left, rows_of(schema, [-8, -7], 5.0, dirty=True))


def test_by_score_a_clean_newcomer_must_outscore_the_victim(kind):
    schema = schema_of()
    table = one_bucket(kind, schema)
    table.insert(rows_of(schema, np.arange(table.capacity_rows), np.arange(table.capacity_rows) + 1.0))
    table.insert(rows_of(schema, [1000, 1001], [0.5, 1.0]), by_score=True)
    assert table.find(np.array([1000, 1001])).tolist() == [-1, -1]
    table.insert(rows_of(schema, [1002], [1.5]), by_score=True)
    table.insert(rows_of(schema, [1003], [-9.0], dirty=True), by_score=True)
    assert table.find(np.array([0, 1002])).tolist() == [-1, -1]
    assert (table.find(np.array([1003])) >= 0).all()
    table.insert(rows_of(schema, [1004], [-9.0]))
    assert (table.find(np.array([1004])) >= 0).all(), "without by_score every newcomer enters"


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


@pytest.mark.parametrize("by_score", [False, True])
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


@pytest.mark.parametrize("cells", [1, 40, 100_000])
@pytest.mark.parametrize("load", [0.0, 0.3, 0.9, 1.0])
def test_shrinking_lets_only_dirty_rows_out_and_keeps_the_highest_scores(kind, load, cells):
    table = full_table(kind, schema_of("float32", 5), 1024, load)
    before = table.read(table.occupied())
    left = []
    while table.capacity_rows > 256:
        capacity = table.capacity_rows
        left.append(table.shrink(cells, 256))
        assert 256 <= table.capacity_rows < capacity
        if kind is not OpaqueTable:  # which halves
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
    table.release_all()
    assert flags_of(table, [0, 1]) == [DIRTY, 0]


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
