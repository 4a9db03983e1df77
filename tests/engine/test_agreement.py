"""What get_variable accepts for an open variable. Arguments that it did not have were accepted and ignored."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import kvemb
from kvemb.durability import cold_databases
from kvemb.engine.arguments import Arguments
from kvemb.errors import SchemaMismatch
from kvemb.handle import inside


def first_half(keys, count):
    return keys % count


def at_most_one(values):
    return np.minimum(values, 1)


def no_loss(variable):
    return None


# For each argument, a value that a variable has, and another one.
VALUES = {
    "key_dtype": ("int64", "int32"),
    "value_dtype": ("float32", "float64"),
    "dim": (2, 3),
    "devices": (["cpu", "cpu"], "cpu"),
    "partitioner": (first_half, lambda keys, count: keys % count),
    "initializer": (1.0, 2.0),
    "trainable": (True, False),
    "checkpoint": (True, False),
    "init_size": (100, 200),
    "kv_creator": (kvemb.RocksDBCreator(bloom_bits=5), kvemb.RocksDBCreator(bloom_bits=6)),
    "restrict_policy": (kvemb.TimestampRestrictPolicy, kvemb.FrequencyRestrictPolicy),
    "bp_v2": (False, True),
    "optimizer": (kvemb.optimizers.Adagrad(0.5), kvemb.optimizers.Adam(0.5)),
    "hot_rows": (64, 128),
    "admission": (kvemb.Admission(2), kvemb.Admission(3)),
    "regularizer": (no_loss, lambda variable: None),
    "constraint": (at_most_one, np.abs),
    "collections": (["mine"], ["mine", "yours"]),
}
# Those that may change at any time (tests/engine/test_keeping_bounds.py), and those that have no effect on what a
# variable is: unused, about the call, or with one legal value.
OTHERS = {
    "max_rows", "ttl",
    "name_bytes",  # of strings alone: tests/test_string_keys.py
    "name", "shared_name", "custom_getter", "caching_device", "validate_shape", "use_resource", "synchronization",
    "aggregation",
}  # fmt: skip


def test_every_argument_is_listed():
    assert {field.name for field in dataclasses.fields(Arguments)} == {*VALUES, *OTHERS}


@pytest.mark.parametrize("name", VALUES)
def test_an_open_variable_is_got_with_what_it_has_and_with_nothing_else(store, name):
    has, other = VALUES[name]
    users = store.get_variable("users", **{"dim": 2, name: has})
    assert store.get_variable("users", **{name: has}) is store.get_variable("users") is users
    with pytest.raises(ValueError, match=rf"'users' (is open|is stored) with {name}=.*, (got|not) {name}=") as caught:
        store.get_variable("users", **{name: other})
    assert isinstance(caught.value, SchemaMismatch) or "leave it out, or give it in the call" in str(caught.value)


@pytest.mark.parametrize("name", ["devices", "init_size", "kv_creator", "hot_rows", "admission", "constraint"])
def test_an_open_variable_that_was_opened_without_an_argument_does_not_take_it_on(store, name):
    store.get_variable("users", dim=2)
    with pytest.raises(ValueError, match=rf"'users' is open with {name}=.*, got {name}=.*; leave it out, or give"):
        store.get_variable("users", **{name: VALUES[name][0]})


def test_spellings_of_one_value_are_the_same(store):
    users = store.get_variable("users", dim=2, devices="/CPU:0", hot_rows=64)
    assert store.get_variable("users", devices=["cpu"], hot_rows=np.int32(64), init_size=np.int64(0)) is users


def test_collections_have_no_order_and_are_joined_once(store):
    """The same names in another order were refused, and a name given twice was joined twice."""
    users = store.get_variable("users", dim=2, collections=["b", "a", "b"])
    assert store.get_variable("users", collections=("a", "trainable_variables", "b")) is users
    assert store.get_collection("b") == [users]


def test_what_is_no_value_of_an_argument_is_refused_for_an_open_variable_too(store):
    store.get_variable("users", dim=2, hot_rows=64)
    for given, error in (
        ({"partitioner": None}, TypeError), ({"devices": 1}, TypeError), ({"hot_rows": 0}, ValueError),
        ({"init_size": -1}, ValueError), ({"kv_creator": "rocks"}, TypeError), ({"devices": []}, ValueError),
    ):  # fmt: skip
        with pytest.raises(error, match=next(iter(given))):
            store.get_variable("users", **given)


def test_more_first_rows_than_hot_rows_are_refused(store):
    """init_size was ignored beside hot_rows."""
    with pytest.raises(ValueError, match="init_size=65 rows do not fit in hot_rows=64; leave one of them out"):
        store.get_variable("users", dim=2, hot_rows=64, init_size=65)
    assert store.get_variable("users", dim=2, hot_rows=64, init_size=64).name == "users"


def test_a_stored_variables_other_creator_is_used_from_the_next_opening(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    for bits in (5, 6):
        creator = kvemb.RocksDBCreator(bloom_bits=bits)
        assert store.get_variable("users", dim=2, kv_creator=creator).dim == 2
        store.close()
        store = open_store(tmp_path / "store")
        assert cold_databases.creators_of(inside(store).opened_manifest) == {"users": creator}
