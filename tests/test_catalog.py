"""A store's variables by name: a mapping that opens a stored variable when it is accessed."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
from kvemb.catalog import VariableMap, open_stored, open_variable, variable_of
from kvemb.errors import Closed
from kvemb.handle import inside


def test_only_getting_a_variable_opens_it():
    names, asked = ["a", "b"], []
    view = VariableMap(lambda: names, lambda name: asked.append(name) or name.upper())
    assert (len(view), list(view), "a" in view, "c" in view, 7 in view) == (2, ["a", "b"], True, False, False)
    assert repr(view) == "<variables a, b>"
    assert asked == []
    assert (view["b"], view.get("c")) == ("B", None)
    names.append("c")
    assert (view["c"], asked) == ("C", ["b", "c"])


def test_a_name_that_is_missing_is_told_with_those_there_are():
    for names, told in (([], "there is none"), (["a", "b"], "there are a, b")):
        with pytest.raises(KeyError, match=f"there is no variable 'x'; {told}"):
            VariableMap(lambda names=names: names, str)["x"]


def test_a_stored_variable_is_opened_once_as_it_is_stored_and_one_like_it_is_made_elsewhere(open_store, tmp_path):
    given = {
        "key_dtype": "uint64", "value_dtype": "float16", "dim": 3, "trainable": False, "checkpoint": False,
        "bp_v2": True, "initializer": kvemb.RandomUniform(-1, 1, seed=7), "optimizer": kvemb.optimizers.Adam(0.5),
        "restrict_policy": kvemb.TimestampRestrictPolicy("steps"), "kv_creator": kvemb.RocksDBCreator(bloom_bits=5),
    }  # fmt: skip
    store = open_store(tmp_path / "store")
    first = inside(store.get_variable("users", **given)).entry()
    store.close()
    store = open_store(tmp_path / "store")
    users = open_variable(store, "users")
    assert open_variable(store, "users") is users is variable_of(inside(users))
    assert inside(users).entry() == first
    with pytest.raises(KeyError):
        open_variable(store, "items")
    users.upsert([1], np.ones((1, 3), np.float16))
    other = open_store(tmp_path / "other")
    assert inside(open_stored(other, "users", inside(users).entry())).entry() == first, "one like it has no row"
    store.close()
    with pytest.raises(Closed):
        open_variable(store, "users")
