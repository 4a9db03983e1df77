"""The default store: the innermost one; without one, an error that says what to do."""

from __future__ import annotations

import pytest

import kvemb
from kvemb.defaults import DEFAULTS, store_or_default
from kvemb.errors import StoreNotFound
from kvemb.handle import Handle


def test_with_makes_a_store_the_default_and_closes_it(no_default, tmp_path):
    with kvemb.open(tmp_path / "a") as a:
        assert kvemb.default_store() is a
        users = kvemb.get_variable("users", dim=2)
        with kvemb.open(tmp_path / "b") as b:
            assert kvemb.default_store() is b
        assert kvemb.default_store() is a
        with kvemb.open(tmp_path / "b") as b, a.as_default():
            assert kvemb.default_store() is a
            assert users is kvemb.get_variable("users", dim=2)
    assert a.state.closed
    assert b.state.closed


def test_as_default_leaves_the_store_open(no_default, store):
    with store.as_default() as same:
        assert same is store is kvemb.default_store()
    assert not store.state.closed
    assert DEFAULTS.stores == []


def test_a_store_that_is_the_default_again_inside_another_gives_way_to_that_one(
    no_default, store, open_store, tmp_path
):
    """Its outer block ended instead of the inner one, and variables were then made in the wrong store."""
    inner = open_store(tmp_path / "inner")
    with store.as_default(), inner.as_default():
        with store.as_default():
            assert kvemb.default_store() is store
        assert kvemb.default_store() is inner
    assert DEFAULTS.stores == []


def test_without_a_store_every_call_says_how_to_get_one(no_default):
    for call in (
        kvemb.default_store,
        lambda: kvemb.get_variable("users", dim=2),
        lambda: kvemb.Variable(name="users"),
        lambda: kvemb.get_collection("variables"),
    ):
        with pytest.raises(StoreNotFound, match=r"with kvemb\.open\(path\):.*store=kvemb\.open.*kvemb\.temporary\(\)"):
            call()


def test_only_a_store_is_chosen(no_default, store):
    assert store_or_default(store) is store
    with store.as_default():
        assert store_or_default(None) is store
    variable = store.get_variable("users", dim=2)
    for wrong in (variable, store.path, Handle(store.path), 0, ""):
        with pytest.raises(TypeError, match=r"store must be a Store, got .*; use kvemb\.open\(path\)"):
            store_or_default(wrong)
