"""Variables: every method, over rows that do not fit in the hot tier."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from kvemb import (
    FrequencyRestrictPolicy,
    RandomUniform,
    TimestampRestrictPolicy,
)
from kvemb.optimizers import SGD, Adagrad
from kvemb.rows.schema import dtype_of

HOT = 16  # cells; tests use more rows, so that both tiers work


def values_of(count, dim=3, start=0.0):
    return (start + np.arange(count * dim, dtype=np.float32)).reshape(count, dim)


@pytest.fixture
def table(make):
    """100 rows, most of them cold: key i holds 3i, 3i + 1, 3i + 2."""
    variable = make(restrict_policy=FrequencyRestrictPolicy, optimizer=Adagrad(0.5, 0.1))
    variable.upsert(np.arange(100), values_of(100))
    return variable


# lookup, upsert.


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (0, 4), (2, 0), (1, 2, 3)])
def test_keys_have_any_shape(table, shape):
    keys = np.arange(math.prod(shape)).reshape(shape) * 7
    rows, exists = table.lookup(keys, return_exists=True)
    assert rows.shape == (*shape, 3)
    assert exists.shape == shape
    assert exists.dtype == np.bool_
    assert rows.tolist() == (keys[..., None] * 3 + np.arange(3)).tolist()
    table.upsert(keys, rows + 1)
    assert table.lookup(keys).tolist() == (rows + 1).tolist()
    table.apply_gradients(keys, rows)
    table.accum(keys, rows, rows, exists)
    table.remove(keys)
    assert not table.lookup(keys, return_exists=True)[1].any()
    assert table.size() == 100 - keys.size


def test_lists_and_numbers_are_converted(table):
    table.upsert(7, [1, 2, 3])
    table.upsert([8, 9], [[1, 2, 3], [4.5, 5, 6]])
    assert table.lookup(7).tolist() == [1, 2, 3]
    assert table.lookup([[8], [9]]).tolist() == [[[1, 2, 3]], [[4.5, 5, 6]]]
    assert table.lookup(range(3)).shape == (3, 3)


def test_uint64_scalars_have_the_shape_of_scalars(make):
    variable = make(key_dtype="uint64")
    variable.upsert(np.uint64(2**64 - 1), [1, 2, 3])
    assert variable.lookup(2**64 - 1).tolist() == [1, 2, 3]
    assert variable.lookup(np.uint64(1)).shape == (3,)
    assert variable.lookup([1, 2**64 - 1], return_exists=True)[1].tolist() == [False, True]


def test_lookups_are_fresh_and_inputs_stay_the_callers(table):
    keys, values = np.arange(100), values_of(100)
    table.upsert(keys, values)
    got = table.lookup(keys)
    values[:] = -1
    keys[:] = 0
    got[:] = -2
    np.testing.assert_array_equal(table.lookup(np.arange(100)), values_of(100))


def test_an_array_that_is_given_is_filled_and_returned(table):
    for keys in (np.arange(20).reshape(4, 5), 7, []):
        expected, there = table.lookup(keys, return_exists=True, touch=False)
        out = np.full(expected.shape, np.nan, np.float32)
        assert table.lookup(keys, touch=False, out=out) is out
        np.testing.assert_array_equal(out, expected)
        found, exists = table.lookup(keys, True, touch=False, out=out)
        assert found is out
        np.testing.assert_array_equal(exists, there)


def test_an_array_that_cannot_be_filled_is_refused_before_anything_is_read(table):
    before = table.stats
    keys, fits = np.zeros(4, np.int64), np.empty((4, 3), np.float32)
    fixed = fits.copy()
    fixed.flags.writeable = False
    for out, error, message in [
        (np.empty((4, 2), np.float32), ValueError, r"shape keys.shape \+ \(dim,\) = \(4, 3\), got \(4, 2\)"),
        (np.empty(12, np.float32), ValueError, r"= \(4, 3\), got \(12,\)"),
        (np.empty((4, 3)), TypeError, "out must be float32, got float64; make it with np.empty"),
        (np.empty((4, 3), ">f4"), TypeError, "out must be float32, got >f4; make it"),
        (np.empty((3, 4), np.float32).T, ValueError, "got one that is not C-contiguous"),
        (np.empty((4, 6), np.float32)[:, :3], ValueError, "got one that is not C-contiguous"),
        (fixed, ValueError, "got a read-only one"),
        (fits.tolist(), TypeError, "out must be a NumPy array, got list"),
        (np.ma.array(fits), TypeError, "out must be an array without a mask, got a masked array; pass out.data"),
    ]:
        with pytest.raises(error, match=message):
            table.lookup(keys, out=out)
    memory = np.zeros(8, np.int64)
    with pytest.raises(ValueError, match="out must not share memory with keys"):
        table.lookup(memory[:4], out=memory.view(np.float32)[:12].reshape(4, 3))
    assert (table.stats.hits, table.stats.misses) == (before.hits, before.misses)


def test_lookups_insert_nothing(table):
    rows, exists = table.lookup(np.arange(90, 200), return_exists=True)
    assert exists.tolist() == [True] * 10 + [False] * 100
    assert not rows[10:].any()
    assert table.size() == 100
    assert table.export()[0].tolist() == list(range(100))


def test_each_occurrence_is_a_use_unless_told_otherwise(table):
    keys = np.array([1, 99, 1, 50, 1, 777])
    before = table.restrict_policy.status(keys)
    table.lookup(keys, touch=False)
    np.testing.assert_array_equal(table.restrict_policy.status(keys), before)
    table.lookup(keys)
    after = table.restrict_policy.status(keys)
    np.testing.assert_array_equal(after - before, [3, 1, 3, 1, 3, np.nan])
    table.lookup(keys.reshape(2, 3))
    np.testing.assert_array_equal(table.restrict_policy.status(keys) - before, [6, 2, 6, 2, 6, np.nan])


def test_of_duplicate_keys_the_last_wins(table):
    keys = np.array([1000, 3, 1000, 99, 3, 1000])
    table.upsert(keys, values_of(6, start=500))
    assert table.lookup([1000, 3, 99]).tolist() == values_of(6, start=500)[[5, 4, 3]].tolist()
    assert table.size() == 101


def test_upsert_keeps_slots_and_scores(table):
    keys = np.arange(100)
    table.apply_gradients(keys, np.ones((100, 3), np.float32))
    table.lookup(keys[:30])
    _, _, slots, scores = table.export(with_slots=True, with_scores=True)
    table.upsert(keys, values_of(100, start=9))
    _, values, slots_after, scores_after = table.export(with_slots=True, with_scores=True)
    np.testing.assert_array_equal(values, values_of(100, start=9))
    np.testing.assert_array_equal(slots_after["accumulator"], slots["accumulator"])
    np.testing.assert_array_equal(scores_after, scores)
    assert slots["accumulator"].tolist() == [[np.float32(1.1)] * 3] * 100


def test_a_row_of_zeros_is_a_row(table):
    table.upsert([500, 3], np.zeros((2, 3), np.float32))
    table.lookup(np.arange(100))
    rows, exists = table.lookup([500, 3, 501], return_exists=True)
    assert not rows.any()
    assert exists.tolist() == [True, True, False]


@pytest.mark.limits(call_rows=7000, hot_parallel_keys=1600, cold_parallel_keys=50)
def test_large_batches_are_taken_whole(make):
    variable = make(hot_rows=400)
    keys = np.random.default_rng(0).permutation(15_000)
    variable.upsert(keys, np.stack([keys, -keys, keys % 7], 1).astype(np.float32))
    assert variable.size() == 15_000
    wanted = np.random.default_rng(1).integers(-100, 15_000, 20_000)
    rows, exists = variable.lookup(wanted, return_exists=True)
    assert exists.tolist() == (wanted >= 0).tolist()
    np.testing.assert_array_equal(rows[exists, 1], -wanted[exists].astype(np.float32))
    assert not rows[~exists].any()
    variable.remove(wanted)
    assert variable.size() == 15_000 - len(np.unique(wanted[wanted >= 0]))


def test_prefetch_changes_no_result(table):
    for keys in ([], [5, 50, 5000], np.arange(100)):
        table.prefetch(keys)
        table.upsert([50], values_of(1, start=-3))
        assert table.lookup([5, 50]).tolist() == [[15, 16, 17], [-3, -2, -1]]
    assert table.size() == 100


# accum.


def test_accum_adds_where_a_row_is_believed_and_present(table):
    keys = np.array([1, 99, 1, 1000, 2])
    old, new = values_of(5), values_of(5) + np.float32(0.5)
    exists = np.array([True, True, True, True, False])
    table.accum(keys, old, new, exists)
    assert table.lookup([1]).tolist() == [[4.0, 5.0, 6.0]], "duplicates add up"
    assert table.lookup([99]).tolist() == [[297.5, 298.5, 299.5]]
    assert not table.lookup([1000], return_exists=True)[1].any(), "believed present, but absent: ignored"
    assert table.lookup([2]).tolist() == [[6.0, 7.0, 8.0]], "believed absent, but present: ignored"
    assert table.size() == 100


def test_accum_inserts_where_a_row_is_believed_and_found_absent(table):
    new = values_of(3, start=70)
    table.accum([500, 501, -3], np.zeros((3, 3), np.float32), new, [False] * 3)
    assert table.lookup([500, 501, -3], touch=False).tolist() == new.tolist()
    assert table.restrict_policy.status([500]).tolist() == [1.0]
    assert table.size() == 103


# remove, clear.


def test_removed_rows_start_anew(table):
    table.apply_gradients(np.arange(100), np.ones((100, 3), np.float32))
    table.lookup(np.arange(100))
    table.remove([1, 99, 99, 1000])
    assert table.size() == 98
    assert np.isnan(table.restrict_policy.status([1, 99])).all()
    table.upsert([1, 99], values_of(2))
    keys, _, slots, scores = table.export(with_slots=True, with_scores=True)
    fresh = np.isin(keys, [1, 99])
    assert scores[fresh].tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(slots["accumulator"][fresh], np.full((2, 3), 0.1, np.float32))
    assert (scores[~fresh] > 1.0).all()


def test_clear_drops_everything_and_goes_on(table):
    table.clear()
    assert table.size() == 0
    assert [len(column) for column in table.export()] == [0, 0]
    assert not table.lookup(np.arange(100), return_exists=True)[1].any()
    table.upsert([5], values_of(1))
    assert table.export()[0].tolist() == [5]


# restrict.


@pytest.mark.parametrize("keep", [0, 1, 15, 50, 99, 100, 1000])
def test_restrict_keeps_the_highest_scores_ties_to_the_larger_key(table, keep):
    uses = np.random.default_rng(keep).integers(0, 4, 100)
    table.lookup(np.repeat(np.arange(100), uses))
    ranked = sorted(range(100), key=lambda key: (uses[key], key), reverse=True)
    assert table.restrict(keep) == max(0, 100 - keep)
    keys, values, slots, scores = table.export(with_slots=True, with_scores=True)
    assert keys.tolist() == sorted(ranked[:keep])
    np.testing.assert_array_equal(values, values_of(100)[keys])
    np.testing.assert_array_equal(scores, 1.0 + uses[keys])
    assert len(slots["accumulator"]) == table.size() == min(100, keep)


def test_restrict_waits_for_its_trigger(table):
    assert table.restrict(10, trigger=100) == 0
    assert table.restrict(10, trigger=2**63 - 1) == 0
    assert table.size() == 100
    assert table.restrict(10, trigger=99) == 90
    assert table.restrict_policy.apply_restriction(5) == 5
    assert table.size() == 5


def test_without_a_policy_restrict_does_nothing_and_warns(make):
    variable = make()
    variable.upsert(np.arange(30), values_of(30))
    with pytest.warns(UserWarning, match="has no restrict_policy, so restrict removes nothing; give get_variable one"):
        assert variable.restrict(5) is None
    assert variable.size() == 30


def test_uses_are_recorded_explicitly(table):
    keys = np.array([[3, 99], [3, 1234]])
    before = table.restrict_policy.status(keys)
    table.restrict_policy.apply_update(keys)
    np.testing.assert_array_equal(table.restrict_policy.status(keys) - before, [[2, 1], [2, np.nan]])
    assert table.size() == 100


def test_the_min_recently_used_rows_leave_first(make):
    variable = make(restrict_policy=TimestampRestrictPolicy(clock="steps"))
    variable.upsert(np.arange(100), values_of(100))
    for key in (30, 10, 20, 99):
        variable.lookup([key])
    variable.restrict(3)
    assert variable.export()[0].tolist() == [10, 20, 99]


# size, export.


def test_size_counts_both_tiers(table):
    assert table.size() == 100
    assert table.stats.rows_hot <= 2 * HOT < 100
    assert sum(table.size(index) for index in range(len(table.devices))) == 100
    for index in (-1, len(table.devices), 10**30):
        with pytest.raises(IndexError, match=f"index must be from 0 to {len(table.devices) - 1}"):
            table.size(index)
    for index in (0.0, "0"):
        with pytest.raises(TypeError):
            table.size(index)


def test_export_batches_are_in_key_order_and_of_one_instant(table):
    batches = table.export_batches(7, with_slots=True, with_scores=True)
    table.upsert(np.arange(-10, 200), np.full((210, 3), -1, np.float32))
    table.remove(np.arange(50, 100))
    got = list(batches)
    assert [len(keys) for keys, *_ in got] == [7] * 14 + [2]
    np.testing.assert_array_equal(np.concatenate([keys for keys, *_ in got]), np.arange(100))
    np.testing.assert_array_equal(np.concatenate([values for _, values, *_ in got]), values_of(100))
    assert all(set(slots) == {"accumulator"} for _, _, slots, _ in got)
    assert np.concatenate([scores for *_, scores in got]).tolist() == [1.0] * 100


def test_exports_count_as_no_use_and_are_copies(table):
    before = table.restrict_policy.status(np.arange(100))
    keys, values = table.export()
    keys[:], values[:] = 0, 0
    np.testing.assert_array_equal(table.restrict_policy.status(np.arange(100)), before)
    np.testing.assert_array_equal(table.lookup(np.arange(100)), values_of(100))


@pytest.mark.parametrize("value", ["float32", "float64", "float16", "bfloat16"])
def test_an_empty_table_exports_empty_arrays_of_its_dtypes(make, value):
    if value == "bfloat16":
        pytest.importorskip("ml_dtypes")
    variable = make(key_dtype="int32", value_dtype=value, dim=5, optimizer=Adagrad())
    empty = variable.export(with_slots=True, with_scores=True)
    assert list(variable.export_batches(5)) == []
    variable.upsert([1], np.zeros((1, 5), dtype_of(value)))
    full = variable.export(with_slots=True, with_scores=True)
    for one, none in zip(full[:2] + full[3:], empty[:2] + empty[3:], strict=True):
        assert none.dtype == one.dtype
        assert none.shape == (0, *one.shape[1:])
    assert empty[2]["accumulator"].dtype == full[2]["accumulator"].dtype
    assert empty[2]["accumulator"].shape == (0, 5)


# apply_gradients.


def test_a_step_is_the_optimizers_formula_on_both_tiers(table):
    keys = np.arange(0, 100, 3)
    grads = np.random.default_rng(0).normal(size=(len(keys), 3)).astype(np.float32)
    table.apply_gradients(keys, grads)
    accumulator = np.float32(0.1) + grads * grads
    expected = values_of(100)
    expected[keys] -= np.float32(0.5) * grads / (np.sqrt(accumulator) + np.float32(1e-10))
    _, values, slots = table.export(with_slots=True)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(slots["accumulator"][keys], accumulator)


def test_gradients_of_duplicates_are_summed_first(make):
    one, other = (make(optimizer=Adagrad(0.5)) for _ in range(2))
    keys = np.array([5, 7, 5, 5])
    grads = values_of(4)
    one.apply_gradients(keys, grads)
    other.apply_gradients([5, 7], np.stack([grads[0] + grads[2] + grads[3], grads[1]]))
    assert one.lookup([5, 7]).tobytes() == other.lookup([5, 7]).tobytes()


def test_a_missing_key_starts_from_its_initializers_row(make):
    start = RandomUniform(-1, 1, seed=2)
    variable = make(initializer=start, optimizer=SGD(0.5))
    keys = np.arange(40)
    rows = start.rows(keys, 3, np.float32)
    variable.apply_gradients(keys, np.ones((40, 3), np.float32))
    assert variable.size() == 40
    assert variable.lookup(keys).tobytes() == (rows - np.float32(0.5)).tobytes()


@pytest.mark.parametrize("value", ["float16", "bfloat16"])
def test_gradients_of_16_bit_values_are_float32(make, value):
    if value == "bfloat16":
        pytest.importorskip("ml_dtypes")
    variable = make(value_dtype=value, optimizer=SGD(0.5))
    variable.apply_gradients([1], np.full((1, 3), 0.1, np.float32))
    assert variable.lookup([1])[0, 0] == np.float32(-0.05).astype(dtype_of(value))
    variable.apply_gradients([1], np.zeros((1, 3), dtype_of(value)))


def test_gradients_that_would_lose_digits_are_refused(make):
    variable = make(optimizer=SGD(1.0))
    for grads in ([[1, 2, 3]], [[1.0, 2.0, 3.0]], np.array([[1, 2, 3]], np.float16), np.array([[1, 2, 3]], np.int8)):
        variable.apply_gradients([1], grads)
    assert variable.lookup([1]).tolist() == [[-4.0, -8.0, -12.0]]
    with pytest.raises(TypeError, match="grads must be float32, got float64"):
        variable.apply_gradients([1], np.ones((1, 3)))
    make(value_dtype="float64", optimizer=SGD(1.0)).apply_gradients([1], np.ones((1, 3)))


def test_what_cannot_be_trained_says_so(make):
    grads = np.ones((1, 3), np.float32)
    with pytest.raises(ValueError, match="has no optimizer"):
        make().apply_gradients([1], grads)
    with pytest.raises(ValueError, match="is not trainable"):
        make(trainable=False, optimizer=SGD()).apply_gradients([1], grads)
    with pytest.raises(ValueError, match="optimizer must be None for value_dtype int32"):
        make(value_dtype="int32", optimizer=SGD())


# What it says of itself.


def test_a_variable_says_what_it_holds(store):
    variable = store.get_variable("users", "uint64", "float16", 8)
    variable.upsert(np.arange(3, dtype=np.uint64), np.zeros((3, 8), np.float16))
    variable.remove([2])
    assert repr(variable).endswith(" cold, no row looked up yet>")
    variable.lookup([0, 1, 9])
    text = repr(variable)
    assert text.startswith("<kvemb.Variable 'users' uint64 -> 8 x float16, 2 rows, 2 hot in ")
    assert text.endswith("hit rate 100.0%>"), "there is no row of 9, which no hot tier would have"


def test_threads_may_share_a_variable(make):
    variable = make(optimizer=SGD(1.0), hot_rows=64)
    keys = np.arange(300)

    def work(number):
        order = np.random.default_rng(number)
        for _ in range(20):
            mine = order.permutation(keys)
            variable.lookup(mine)
            variable.apply_gradients(mine, -np.ones((300, 3), np.float32))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(variable.lookup(keys), np.full((300, 3), 80.0))
