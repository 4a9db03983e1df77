"""Arguments of a variable that are left out: dim, dtypes and seeds; what they mean for a new one and a stored one."""

from __future__ import annotations

import inspect
import logging

import numpy as np
import pytest

import kvemb
from kvemb.errors import SchemaMismatch
from kvemb.handle import inside

RANDOM = [kvemb.RandomUniform, kvemb.RandomNormal, kvemb.TruncatedNormal, kvemb.GlorotUniform]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RANDOM)
def test_equal_keys_of_two_variables_begin_with_different_rows(open_store, tmp_path, kind):
    store = open_store(tmp_path / "store")
    rows = {name: store.get_variable(name, dim=4, initializer=kind()).lookup([1, 2]) for name in ("users", "items")}
    assert not (rows["users"] == rows["items"]).any()
    seeds = {name: store.variables[name].initializer.seed for name in rows}
    assert seeds == {"users": 489558067500612477, "items": 16470459336193162335}, "a name's seed never changes"
    store.close()
    again = open_store(tmp_path / "store")
    for name in rows:
        assert again.get_variable(name, dim=4, initializer=kind()).initializer.seed == seeds[name]
        assert (again.variables[name].lookup([1, 2]) == rows[name]).all()
        assert again.get_variable(name, dim=4, initializer=kind()) is again.variables[name]
    other = open_store(tmp_path / "other").get_variable("users", dim=4, initializer=kind())
    assert (other.lookup([1, 2]) == rows["users"]).all()


def test_a_seed_that_is_given_stays_and_one_left_out_asks_for_nothing(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    store.get_variable("users", dim=2, initializer=kvemb.RandomUniform(-1, 1, seed=0))
    store.close()
    store = open_store(tmp_path / "store")
    assert store.get_variable("users", dim=2, initializer=kvemb.RandomUniform(-1, 1)).initializer.seed == 0
    for other in (kvemb.RandomUniform(-1, 1, seed=1), kvemb.RandomUniform(-2, 1), kvemb.RandomNormal()):
        with pytest.raises(SchemaMismatch, match="initializer"):
            store.get_variable("users", dim=2, initializer=other)


def test_rows_are_not_drawn_without_a_seed():
    with pytest.raises(ValueError, match=r"RandomNormal\(.*\) has no seed; pass seed="):
        kvemb.RandomNormal().rows(np.arange(2), 2, "float32")


@pytest.mark.parametrize("opened", [False, True])
def test_what_is_left_out_opens_as_it_is_stored(open_store, tmp_path, opened):
    store = open_store(tmp_path / "store")
    made = store.get_variable("users", "uint64", "float16", 8)
    if not opened:
        store.close()
        store = open_store(tmp_path / "store")
    users = store.get_variable("users")
    assert (users is made) == opened
    assert (users.key_dtype, users.value_dtype, users.dim) == (np.uint64, np.float16, 8)
    for asked in ({"dim": 1}, {"key_dtype": "int64"}, {"value_dtype": "float32"}):
        with pytest.raises(SchemaMismatch, match=next(iter(asked))):
            store.get_variable("users", **asked)


FLAGS = {"trainable": (True, False), "checkpoint": (True, False), "bp_v2": (False, True)}


def flags_of(variable):
    entry = inside(variable).entry()
    assert (variable.trainable, variable.bp_v2) == (entry.trainable, entry.bp_v2)
    return {name: getattr(entry, name) for name in FLAGS}


@pytest.mark.parametrize("asked", FLAGS)
def test_flags_that_are_left_out_are_as_stored_and_given_ones_replace_them(open_store, tmp_path, asked):
    default, other = FLAGS[asked]
    plain = {name: values[0] for name, values in FLAGS.items()}
    for given, expected in (({}, default), ({asked: other}, other), ({}, other), ({asked: default}, default)):
        store = open_store(tmp_path / "store")
        variable = store.get_variable("users", dim=2, **given)
        assert flags_of(variable) == {**plain, asked: expected}
        assert type(getattr(inside(variable).entry(), asked)) is bool
        store.close()


def test_a_new_variable_of_one_number_a_row_is_told_unless_it_is_meant(store, caplog):
    caplog.set_level(logging.WARNING)
    store.get_variable("meant", dim=1)
    kvemb.get_variable("also", "int64", "float32", 1, store=store)
    assert caplog.text == ""
    assert store.get_variable("users").dim == 1
    assert caplog.text.count("variable 'users' is created with one number per row") == 1
    store.get_variable("users")
    assert caplog.text.count("users") == 1
    assert str(inspect.signature(kvemb.get_variable).parameters["dim"]) == "dim: 'int' = 1"
    with pytest.raises(ValueError, match=r"shape \(dim,\) = \(1,\), got \(3,\); give one number per column, or dim=3$"):
        store.get_variable("rows", initializer=[1.0, 2.0, 3.0])
