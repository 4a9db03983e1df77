"""Bad input is refused by name, and does not change the store: rows, slots, scores and the effect of the next call."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
from kvemb import FrequencyRestrictPolicy, MemoryCreator, RestrictPolicy, RocksDBCreator, Zeros
from kvemb.errors import BackendUnavailable
from kvemb.handle import inside
from kvemb.optimizers import Adagrad

ROWS = np.arange(200 * 3, dtype=np.float32).reshape(200, 3)
ONE = np.ones((1, 3), np.float32)


@pytest.fixture
def table(store):
    """200 rows, 16 of them hot, two hot tables, with slots and scores."""
    variable = store.get_variable(
        "table",
        dim=3,
        devices=["cpu"] * 2,
        hot_rows=32,
        optimizer=Adagrad(0.5),
        restrict_policy=FrequencyRestrictPolicy,
    )
    variable.upsert(np.arange(200), ROWS)
    variable.apply_gradients(np.arange(0, 200, 2), np.ones((100, 3), np.float32))
    variable.lookup(np.arange(0, 200, 3))
    return variable


def state_of(variable):
    return variable.export(with_slots=True, with_scores=True), variable.size()


def assert_refused(variable, error, message, call):
    """Assert that call raises error with message, and that the variable is as before."""
    before = state_of(variable)
    with pytest.raises(error, match=message):
        call()
    np.testing.assert_equal(state_of(variable), before)


KEYS = {
    "floats": ([1.5], TypeError, "keys must be int64, got float64"),
    "nothing": (None, TypeError, "keys is None: give an array of int64"),
    "ragged": ([[1], [2, 3]], ValueError, "keys must be a rectangular array"),
    "a masked array without a mask": (np.ma.array([1, 2]), TypeError, r"got a masked array; pass keys.compressed\(\)"),
}


@pytest.mark.parametrize("what", KEYS)
def test_keys_of_the_wrong_kind(store, table, what):
    keys, error, message = KEYS[what]
    rows = np.ones((*np.shape(keys), 3), np.float32) if what != "ragged" else ONE
    exists = np.ones(np.shape(keys) if what != "ragged" else (1,), bool)
    policy = table.restrict_policy
    for call in (
        *(lambda: table.lookup(keys), lambda: table.upsert(keys, rows), lambda: table.apply_gradients(keys, rows)),
        *(lambda: table.accum(keys, rows, rows, exists), lambda: table.remove(keys), lambda: table.prefetch(keys)),
        *(
            lambda: policy.apply_update(keys),
            lambda: policy.status(keys),
            lambda: table.lookup_slot("accumulator", keys),
        ),
        lambda: kvemb.embedding_lookup(table, keys),
        lambda: kvemb.embedding_lookup_unique(table, keys),
        lambda: kvemb.embedding_lookup_sparse(table, keys, [0]),
        lambda: kvemb.safe_embedding_lookup_sparse(table, keys, [0]),
        lambda: store.lookup({table: keys}),
        lambda: store.prefetch({"table": keys}),
        lambda: store.apply_gradients({table: (keys, rows)}),
    ):
        assert_refused(table, error, message, call)


def test_no_keys_may_have_any_dtype(table):
    for none in ([], (), np.empty(0), np.empty(0, bool), np.empty(0, "U3")):
        assert table.lookup(none).shape == (0, 3)


VALUES = {
    "a narrower row": (np.ones((2, 2), np.float32), ValueError, "shape"),
    "complex": (np.ones((2, 3), np.complex64), TypeError, "float32, got complex64"),
    "too large": (np.full((2, 3), 1e39), ValueError, r"fit float32, got 1e\+39"),
    "nothing in a list": ([None, None], TypeError, "float32"),
    "ragged": ([[1.0], [2.0, 3.0]], ValueError, "rectangular"),
    "masked": (np.ma.ones((2, 3), np.float32), TypeError, "got a masked array"),
}


@pytest.mark.parametrize("what", VALUES)
def test_values_of_the_wrong_kind(table, what):
    values, error, message = VALUES[what]
    keys, good = [7, 5000], np.ones((2, 3), np.float32)
    for call, name in (
        (lambda: table.upsert(keys, values), "values"),
        (lambda: table.apply_gradients(keys, values), "grads"),
        (lambda: table.accum(keys, values, good, [True, False]), "old_values"),
        (lambda: table.accum(keys, good, values, [True, False]), "new_values"),
    ):
        assert_refused(table, error, f"{name} must .*{message}", call)


def test_nothing_for_values_says_what_may_be_missing(table):
    keys, good = [7, 5000], np.ones((2, 3), np.float32)
    assert_refused(table, TypeError, "values is None: give an array of float32", lambda: table.upsert(keys, None))
    assert_refused(table, TypeError, "old_values is None", lambda: table.accum(keys, None, good, [True, False]))
    message = r"grads is None: did backward\(\) run, and does the looked-up tensor require gradients\?"
    assert_refused(table, TypeError, message, lambda: table.apply_gradients(keys, None))


@pytest.mark.parametrize(
    ("exists", "error"),
    [
        *(([1, 0], TypeError), (np.array([1.0, 0.0]), TypeError), (None, TypeError), (["x", "y"], TypeError)),
        *((True, ValueError), ([True], ValueError), ([[True, False]], ValueError), ([], ValueError)),
        (np.ma.array([True, False]), TypeError),
    ],
    ids=repr,
)
def test_exists_of_the_wrong_kind(table, exists, error):
    good = np.ones((2, 3), np.float32)
    assert_refused(table, error, "exists must", lambda: table.accum([7, 5000], good, good, exists))


def test_unknown_options_of_a_call(table):
    for call in (
        *(lambda: table.restrict(1, triger=5), lambda: table.lookup([1], use=True), lambda: table.export(slots=True)),
        *(lambda: table.upsert([1], ONE, True), lambda: table.lookup([1], False, True)),
    ):
        assert_refused(table, TypeError, "argument", call)


def test_a_partitioner_out_of_range(table):
    keys = np.array([7, 5000, 8])
    rows = np.ones((3, 3), np.float32)
    policy = table.restrict_policy
    for call in (
        *(lambda: table.lookup(keys), lambda: table.upsert(keys, rows), lambda: table.apply_gradients(keys, rows)),
        *(lambda: table.accum(keys, rows, rows, [True, False, True]), lambda: table.remove(keys)),
        *(lambda: policy.apply_update(keys), lambda: table.prefetch(keys)),
    ):
        partition, before = inside(table).hot_tables.partition, state_of(table)
        good, partition._partitioner = partition._partitioner, lambda keys, n: keys % n + 1
        with pytest.raises(ValueError, match="partitioner must return"):
            call()
        partition._partitioner = good
        np.testing.assert_equal(state_of(table), before)


class Moody(RestrictPolicy):
    """A user's policy that misbehaves when a test says so."""

    answer = staticmethod(lambda scores: scores)

    def score(self, old_score, count, now):
        return self.answer(old_score + count)


@pytest.mark.parametrize("hot_rows", [16, 1000])
def test_scores_of_the_wrong_kind(store, monkeypatch, hot_rows):
    table = store.get_variable("moody", dim=3, hot_rows=hot_rows, restrict_policy=Moody, optimizer=Adagrad(0.5))
    table.upsert(np.arange(200), ROWS)
    for call in (
        *(lambda: table.lookup([199, 1]), lambda: table.lookup([1]), lambda: table.upsert([7000, 1], -ROWS[:2])),
        *(lambda: table.restrict_policy.apply_update([199, 1]), lambda: table.apply_gradients([7000, 1], ROWS[:2])),
        lambda: table.accum([7000, 1], ROWS[:2], -ROWS[:2], [False, True]),
    ):
        before = state_of(table)
        monkeypatch.setattr(Moody, "answer", staticmethod(lambda scores: scores * np.nan))
        with pytest.raises(ValueError, match="must not return NaN"):
            call()
        monkeypatch.undo()
        np.testing.assert_equal(state_of(table), before)


# Making a variable.

ARGUMENTS = [
    *(("key_dtype", dtype, TypeError) for dtype in (bytes, "float32", "int16", None, object)),
    *(("value_dtype", dtype, TypeError) for dtype in (str, "uint8", "complex64", None, bool)),
    *(("dim", dim, ValueError) for dim in (0, -1)),
    *(("dim", dim, TypeError) for dim in (1.0, "3", None, True, [3])),
    *(("devices", spec, ValueError) for spec in ("tpu:0", [], "cpu:x", "", "/GPU:")),
    *(("devices", spec, TypeError) for spec in (0, [0], [None])),
    *(("devices", spec, BackendUnavailable) for spec in ("gpu:99", "/GPU:98", "cuda:99")),
    *(("partitioner", spec, TypeError) for spec in (None, 3, "mod")),
    *(("initializer", spec, ValueError) for spec in ([1.0, 2.0], np.zeros((1, 3)), [[1, 2, 3]], 1e39)),
    *(("initializer", spec, TypeError) for spec in ("zeros", Zeros, True, ...)),
    *(("init_size", size, ValueError) for size in (-1,)),
    *(("init_size", size, TypeError) for size in (1.0, None, "big", True)),
    ("init_size", 10**9, ValueError),
    *(("kv_creator", spec, TypeError) for spec in ("rocks", RocksDBCreator, MemoryCreator, ...)),
    *(("restrict_policy", spec, TypeError) for spec in ("lru", 3, RestrictPolicy, dict, ...)),
    *(("optimizer", spec, TypeError) for spec in ("sgd", Adagrad, 0.1)),
    *(("hot_rows", rows, ValueError) for rows in (0, -1, 10**9)),
    *(("hot_rows", rows, TypeError) for rows in (1.0, "big", True)),
    *(("name", name, ValueError) for name in ("", "a//b", "/a", "a/", "..", "a/../b", ".", "default", "a\n", "a\0b")),
    *(("name", name, TypeError) for name in (None, 3, b"x")),
    ("store", "path", TypeError),
    ("unheard_of", 1, TypeError),
]


@pytest.mark.independent
@pytest.mark.parametrize(("argument", "value", "error"), ARGUMENTS, ids=lambda v: repr(v)[:40])
def test_a_variable_that_cannot_be_made(store, tmp_path, argument, value, error):
    free = store.budget.free
    arguments = {"name": "new", "dim": 3, "store": store, argument: value}
    for make in (kvemb.Variable, kvemb.get_variable):
        with pytest.raises(error, match=argument.removesuffix("s")):
            make(**arguments)
    assert list(store.variables) == []
    assert store.get_collection(kvemb.GraphKeys.GLOBAL_VARIABLES) == []
    assert store.budget.free == free
    assert store.get_variable("new", dim=3).size() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("number", [32, np.int64(32)], ids=repr)
def test_a_number_for_a_dtype_may_be_meant_for_dim(store, number):
    message = r"key_dtype must be one of int64, int32, uint64, string, got 32; did you mean dim=32\?"
    with pytest.raises(TypeError, match=message):
        store.get_variable("new", number)
    with pytest.raises(TypeError, match=r"value_dtype must be one of .* got 32; did you mean dim=32\?"):
        store.get_variable("new", "int64", number)


def test_names_of_every_kind_of_text_stay_inside_the_store(store, open_store, tmp_path):
    names = ["a/b/c", "space and ü", "CURRENT", "..hidden", "x" * 500, "%s", "C:\\x"]
    for number, name in enumerate(names):
        store.get_variable(name).upsert([1], [[float(number)]])
    store.close()
    again = open_store(store.path)
    assert list(again.variables) == sorted(names)
    for number, name in enumerate(names):
        assert again.variables[name].lookup([1]).tolist() == [[float(number)]]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
