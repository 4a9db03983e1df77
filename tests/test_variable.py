"""Variables: every method, over rows that do not fit in the hot tier."""

from __future__ import annotations

import math

import numpy as np
import pytest
from stress.lockstep import LockstepChecker
from stress.model import Model

from kvemb import FrequencyRestrictPolicy, RandomUniform, RestrictPolicy, TimestampRestrictPolicy
from kvemb.optimizers import SGD, Adagrad, Ftrl
from kvemb.rows.schema import dtype_of

HOT = 16  # cells; tests use more rows, so that both tiers work
KEYS = 200


def values_of(count, dim=3, start=0.0):
    return (start + np.arange(count * dim, dtype=np.float32)).reshape(count, dim)


@pytest.fixture
def table(make):
    """100 rows, most of them cold: key i holds 3i, 3i + 1, 3i + 2."""
    variable = make(restrict_policy=FrequencyRestrictPolicy, optimizer=Adagrad(0.5, 0.1))
    variable.upsert(np.arange(100), values_of(100))
    return variable


# lookup, upsert.


@pytest.mark.independent
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


def test_a_row_of_zeros_is_a_row(table):
    table.upsert([500, 3], np.zeros((2, 3), np.float32))
    table.lookup(np.arange(100))
    rows, exists = table.lookup([500, 3, 501], return_exists=True)
    assert not rows.any()
    assert exists.tolist() == [True, True, False]


# Any calls, beside a plain table.


class Decayed(RestrictPolicy):
    """A user's policy, which the kernels do not know."""

    def score(self, old_score, count, now):
        return old_score * 0.5 + count


def change(twin, chance):
    """Make one call of a kind drawn at random, with keys that occur several times."""
    keys = chance.zipf(1.3, int(chance.integers(0, 120))) % KEYS - 3
    one, other = chance.normal(size=(2, len(keys), 3)).astype(np.float32)
    kind = chance.choice(
        ["lookup", "lookup", "step", "step", "upsert", "upsert", "accum", "accum", "use", "remove", "few"]
    )
    if kind == "lookup":
        if chance.random() < 0.5:
            twin.variable.prefetch(keys)
        twin.lookup(keys, touch=chance.random() < 0.7)
    elif kind == "step":
        twin.apply_gradients(keys, one)
    elif kind == "upsert":
        twin.upsert(keys, one)
    elif kind == "accum":
        twin.accum(keys, one, other, chance.random(len(keys)) < 0.6)
    elif kind == "use":
        twin.use(keys)
    elif kind == "remove":
        twin.remove(keys[:30])
    elif chance.random() < 0.3:
        twin.clear()
    else:
        twin.restrict(int(chance.integers(0, KEYS)), int(chance.integers(0, KEYS)))
    twin.check_status(twin.model.universe[::3])


HISTORIES = [
    (FrequencyRestrictPolicy(), Adagrad(0.5, 0.25)),
    (TimestampRestrictPolicy(clock="steps"), Ftrl(0.5, l1_regularization_strength=0.1)),
    (Decayed(), SGD(0.5)),
]


@pytest.mark.independent
@pytest.mark.parametrize(("policy", "optimizer"), HISTORIES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "pieces",
    [False, pytest.param(True, marks=pytest.mark.limits(call_rows=7, hot_parallel_keys=4, cold_parallel_keys=4))],
)
def test_any_calls_give_what_a_plain_table_gives(make, policy, optimizer, pieces):
    start = RandomUniform(-1, 1, seed=2)
    variable = make(initializer=start, optimizer=optimizer, restrict_policy=policy)
    universe = np.arange(-3, KEYS)
    model = Model(universe, variable.value_dtype, 3, initializer=start, optimizer=optimizer, policy=policy)
    twin, chance = LockstepChecker(variable, model), np.random.default_rng(pieces)
    for turn in range(20 if pieces else 60):
        change(twin, chance)
        twin.check_size()
        if turn % 10 == 9:
            twin.check_export(None if turn % 20 == 9 else 7)


# restrict.


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


@pytest.mark.independent
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


@pytest.mark.independent
@pytest.mark.parametrize("value", ["float32", "float64", "float16"])
def test_values_and_gradients_are_cast_as_numpy_assigns_them(make, value):
    variable = make(optimizer=SGD(1.0), value_dtype=value)
    rows = np.array([[0.1, -1 / 3, 2.0]])
    variable.upsert([1], rows)
    assert variable.lookup([1]).tolist() == rows.astype(value).tolist()
    variable.accum([1, 2], np.array([[0.0, 0, 0]] * 2), np.array([[1.0, 1, 1]] * 2), [True, False])
    assert variable.lookup([2]).tolist() == [[1.0, 1.0, 1.0]]
    for dtype in (list, np.float64, np.float32, np.float16, np.int64, np.int8):
        grads = [[1, 2, 3]] if dtype is list else np.array([[1, 2, 3]], dtype)
        variable.apply_gradients([3], grads)
    assert variable.lookup([3]).tolist() == [[-6.0, -12.0, -18.0]]
    with pytest.raises(
        TypeError, match=f"grads must be {'float64' if value == 'float64' else 'float32'}, got complex64"
    ):
        variable.apply_gradients([3], np.ones((1, 3), np.complex64))
    with pytest.raises(TypeError, match="values must be int32, got float64"):
        make(value_dtype="int32").upsert([1], rows)


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
    variable.remove([1])
    assert "8 x float16, 1 row, 1 hot in " in repr(variable)
    variable.upsert([1], np.zeros((1, 8), np.float16))
    variable.lookup([0, 1, 9])
    text = repr(variable)
    assert text.startswith("<kvemb.Variable 'users' uint64 -> 8 x float16, 2 rows, 2 hot in ")
    assert text.endswith("hit rate 100.0%>"), "there is no row of 9, which no hot tier would have"
