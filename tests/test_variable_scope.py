"""Variable scopes: TensorFlow's rules for names, reuse, defaults, getters and collections."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kvemb
from kvemb import AUTO_REUSE, GraphKeys, get_collection, get_variable, get_variable_scope, variable_scope
from kvemb.initializers import Zeros


@pytest.fixture(autouse=True)
def _default(store):
    with store.as_default():
        yield


def test_names_are_prefixed_and_nest():
    with variable_scope("towers") as towers:
        assert (towers.name, get_variable_scope()) == ("towers", towers)
        assert get_variable("users", dim=2).name == "towers/users"
        with variable_scope("left/deep") as left:
            assert left.name == "towers/left/deep"
            assert get_variable("users", dim=2).name == "towers/left/deep/users"
    with variable_scope("other"), variable_scope(towers, reuse=True):
        assert get_variable("users").name == "towers/users"
    with variable_scope("s"):
        assert kvemb.default_store().get_variable("v", dim=1).name == "s/v"
    assert get_variable_scope() is None
    assert get_variable("users", dim=2).name == "users"


def test_auto_reuse_gets_what_it_created():
    def make():
        with variable_scope("foo", reuse=AUTO_REUSE):
            return get_variable("v", dim=1)

    assert make() is make()


def test_without_reuse_a_second_creation_is_refused():
    for reuse in (None, False):
        with variable_scope("s", reuse=reuse):
            get_variable(f"v{reuse}", dim=1)
            with pytest.raises(ValueError, match=r"variable 's/v\w+' exists already; did you mean to set reuse=True"):
                get_variable(f"v{reuse}", dim=1)
    assert get_variable("free", dim=1) is get_variable("free", dim=1)  # outside any scope


def test_with_reuse_a_missing_variable_is_refused(store):
    with (
        variable_scope("s", reuse=True),
        pytest.raises(ValueError, match="'s/v' does not exist, and the scope 's' has"),
    ):
        get_variable("v", dim=1)
    assert list(store.variables) == []


def test_reuse_is_inherited():
    with variable_scope("a"):
        made = get_variable("v", dim=1)
    with variable_scope("a", reuse=True) as outer, variable_scope("b", reuse=False) as inner:
        assert (outer.reuse, inner.reuse) == (True, True)
        with pytest.raises(ValueError, match="does not exist"):
            get_variable("v", dim=1)
    with variable_scope("a", reuse=AUTO_REUSE), variable_scope("b"):
        assert get_variable("v", dim=1) is get_variable("v", dim=1) is not made


def test_a_stored_variable_is_opened_whatever_reuse_says(open_store, tmp_path):
    for reuse in (None, True):
        with open_store(tmp_path / "again") as store, variable_scope("s", reuse=reuse, initializer=7.0):
            if "s/v" not in store.variables:
                with variable_scope(get_variable_scope(), initializer=3.0):
                    get_variable("v", dim=2).upsert([1], [[1.0, 1]])
            else:
                # The scope's initializer is for new variables.
                assert get_variable("v").lookup([1, 2]).tolist() == [[1, 1], [3, 3]]


def test_initializers_come_from_the_argument_then_the_scopes_then_glorot():
    assert get_variable("outside", dim=3).initializer == Zeros()
    with variable_scope("a"):
        glorot = get_variable("v", dim=3)
        assert isinstance(glorot.initializer, kvemb.GlorotUniform)
        rows = glorot.lookup(np.arange(1000))
        assert 0.97 < np.abs(rows).max() <= 1  # sqrt(3 / dim)
        assert get_variable("whole", dim=3, value_dtype="int32").initializer == Zeros()
        with variable_scope("b", initializer=2.0), variable_scope("c"):
            assert get_variable("v", dim=2).lookup([1]).tolist() == [[2, 2]]
            assert get_variable("w", dim=2, initializer=5).lookup([1]).tolist() == [[5, 5]]


def test_partitioners_come_from_the_scope():
    def first(keys, shards):
        return np.zeros(len(keys), np.int64)

    def last(keys, shards):
        return np.full(len(keys), shards - 1)

    with variable_scope("a", partitioner=first):
        assert get_variable("v", dim=1).partitioner is first
        assert get_variable("w", dim=1, partitioner=last).partitioner is last


def test_a_regularizer_adds_its_value_to_the_losses():
    def regularizer(variable):
        return None if variable.name == "a/none" else lambda: float(np.sum(variable.export()[1] ** 2))

    with variable_scope("a", regularizer=regularizer):
        users = get_variable("users", dim=2)
        get_variable("none", dim=2)
        get_variable("own", dim=2, regularizer=lambda variable: np.ones(3))
    users.upsert([1], [[1.0, 2]])
    loss, array = get_collection(GraphKeys.REGULARIZATION_LOSSES)
    assert loss() == 5
    assert array.tolist() == [1, 1, 1]
    kvemb.default_store().drop_variable("a/users")  # finds the variable among arrays


def test_collections_are_those_that_are_given():
    one = get_variable("one", dim=1, collections=["mine"])
    two = get_variable("two", dim=1, collections=["mine", GraphKeys.GLOBAL_VARIABLES], trainable=False)
    assert get_collection("mine") == [one, two]
    assert get_collection(GraphKeys.GLOBAL_VARIABLES) == [two]
    assert get_collection(GraphKeys.TRAINABLE_VARIABLES) == [one]
    assert get_collection("nothing") == []
    get_collection(GraphKeys.TRAINABLE_VARIABLES).clear()
    assert get_collection(GraphKeys.TRAINABLE_VARIABLES) == [one], "it was a copy"


# Custom getters.


def test_a_custom_getter_wraps_creation_from_the_innermost_out():
    seen = []

    def getter_of(label):
        def getter(getter, name, *args, **kwargs):
            seen.append((label, name, kwargs["dim"]))
            return getter(f"{name}_{label}", *args, **{**kwargs, "dim": kwargs["dim"] + 1})

        return getter

    with variable_scope("a", custom_getter=getter_of("out")), variable_scope("b", custom_getter=getter_of("in")):
        made = get_variable("v", dim=1)
    assert seen == [("in", "a/b/v", 1), ("out", "a/b/v_in", 2)]
    assert (made.name, made.dim) == ("a/b/v_in_out", 3)


def test_a_getter_given_as_an_argument_takes_the_place_of_the_scopes():
    def suffix(getter, name, *args, **kwargs):
        return getter(name + "_suffix", *args, **kwargs)

    def never(getter, name, *args, **kwargs):
        raise AssertionError

    assert get_variable("v", dim=2, custom_getter=suffix).name == "v_suffix"
    with variable_scope("s", custom_getter=never):
        assert get_variable("v", dim=2, custom_getter=suffix).name == "s/v_suffix"
        assert get_variable("w", dim=2, custom_getter=lambda getter, name, **kwargs: name) == "s/w"
    with pytest.raises(ValueError, match="custom_getter wraps get_variable"):
        kvemb.Variable(name="x", dim=1, custom_getter=suffix)


# Constraints.


def most_one(values):
    return values / np.maximum(1, np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_a_constraint_projects_what_a_step_changed(devices):
    sgd = kvemb.optimizers.SGD(1.0)
    with variable_scope("s", constraint=most_one, initializer=0.0):
        table = get_variable("v", dim=2, optimizer=sgd, hot_rows=16 * len(devices), devices=devices)
    table.upsert(np.arange(100), np.full((100, 2), 3, np.float32))  # not a step
    table.apply_gradients([1, 99, 500, 1], np.full((4, 2), -1, np.float32))
    rows = table.lookup([1, 99, 500, 2])
    np.testing.assert_allclose(rows, [[0.5**0.5] * 2] * 3 + [[3, 3]], rtol=1e-6)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_a_step_whose_projection_fails_is_undone(store, devices):
    broken = []

    def constraint(values):
        if broken == ["shape"]:
            return values[:1]
        if broken:
            raise RuntimeError("no projection")
        return values

    optimizer = kvemb.optimizers.Adagrad(1.0)
    table = get_variable("v", dim=2, optimizer=optimizer, hot_rows=16, constraint=constraint, devices=devices)
    table.upsert(np.arange(100), np.ones((100, 2), np.float32))
    table.apply_gradients(np.arange(90, 100), np.ones((10, 2), np.float32))
    before = table.export(with_slots=True, with_scores=True)
    for why, error, message in [
        ("raises", RuntimeError, "no projection"),
        ("shape", ValueError, r"constraint's result must have shape \(n, dim\) = \(5, 2\), got \(1, 2\)"),
    ]:
        broken[:] = [why]
        with pytest.raises(error, match=message):
            table.apply_gradients([99, 1, 98, 500, 97], np.ones((5, 2), np.float32))
        np.testing.assert_equal(table.export(with_slots=True, with_scores=True), before)
        assert store.state.cause is None
    broken.clear()
    table.apply_gradients([99, 500], np.ones((2, 2), np.float32))
    assert table.size() == 101


def test_an_open_variable_does_not_take_on_a_scopes_regularizer(store):
    """A scope's regularizer is called when a variable is made or opened, as TensorFlow's; one that is given is new."""
    made = []
    for _ in range(2):  # as a function that builds a model is called twice
        with variable_scope("model", reuse=AUTO_REUSE, regularizer=lambda variable: made.append(variable.name)):
            table = get_variable("table", dim=1)
    assert made == ["model/table"]
    with pytest.raises(ValueError, match="'model/table' is open with regularizer=<function"):
        store.get_variable("model/table", regularizer=print)
    assert store.get_variable("model/table") is table


# What is refused.


@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("caching_device", "cpu", ValueError, "caching_device has no meaning in kvemb"),
        ("validate_shape", False, ValueError, "validate_shape must be True"),
        ("use_resource", False, ValueError, "use_resource must be True"),
        ("synchronization", "ON_READ", ValueError, "synchronization must be AUTO or left out, got 'ON_READ'"),
        ("aggregation", "SUM", ValueError, "aggregation must be NONE or left out, got 'SUM'"),
        ("regularizer", 1, TypeError, "regularizer must be callable, got 1"),
        ("constraint", "x", TypeError, "constraint must be callable, got 'x'"),
        ("collections", "variables", TypeError, "collections must be a list of names"),
        ("collections", [1], TypeError, "collections must be a list of names"),
    ],
)
def test_arguments_without_meaning_are_refused_by_name(store, argument, value, error, message):
    with pytest.raises(error, match=message):
        get_variable("v", dim=1, **{argument: value})
    assert list(store.variables) == []
    get_variable("v", dim=1, validate_shape=True, use_resource=True, synchronization="auto", aggregation="none")
    with pytest.raises(error, match=message):
        get_variable("v", **{argument: value})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": ""}, ValueError, "name must be printable"),
        ({"name": "a/../b"}, ValueError, "name must be printable"),
        ({"name": 7}, TypeError, "name must be a str"),
        ({"name": "s", "reuse": 1}, TypeError, "reuse must be True, False, None or AUTO_REUSE, got 1"),
        ({"name": "s", "caching_device": "cpu"}, ValueError, "caching_device has no meaning"),
        ({"name": "s", "custom_getter": 3}, TypeError, "custom_getter must be callable, got 3"),
        ({"name": "s", "partitioner": 3}, TypeError, "partitioner must be callable, got 3"),
    ],
)
def test_scopes_that_are_refused(arguments, error, message):
    with pytest.raises(error, match=message), variable_scope(**arguments):
        pass
    assert get_variable_scope() is None


def test_a_scope_belongs_to_its_thread_and_ends_with_an_error():
    found = []
    with variable_scope("s"):
        thread = threading.Thread(target=lambda: found.append(get_variable_scope()))
        thread.start()
        thread.join()
    assert found == [None]
    with pytest.raises(RuntimeError), variable_scope("s"):
        raise RuntimeError
    assert get_variable_scope() is None


def test_an_exception_from_another_thread_between_step_and_projection_poisons_the_store(store):
    """Hot rows have taken the step by then, others have not."""

    def constraint(values):
        raise KeyboardInterrupt

    table = store.get_variable("v", dim=2, optimizer=kvemb.optimizers.SGD(1.0), hot_rows=16, constraint=constraint)
    table.upsert(np.arange(100), np.ones((100, 2), np.float32))
    with pytest.raises(KeyboardInterrupt):
        table.apply_gradients(np.arange(100), np.ones((100, 2), np.float32))
    with pytest.raises(kvemb.errors.Poisoned):
        store.state.check_whole()
