"""The default store: the innermost one, and a temporary one where there is none."""

from __future__ import annotations

import os

import pytest
from programs import run_python

import kvemb
from kvemb.defaults import DEFAULTS, Defaults, store_or_default
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


@pytest.mark.slow
def test_without_a_default_a_temporary_store_warns_once_and_is_deleted(tmp_path):
    done = run_python(
        """
        import sys, warnings
        import kvemb
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            users = kvemb.get_variable("users", dim=2)
            users.upsert([1], [[1.0, 2.0]])
            other = kvemb.Variable(name="other")
        (warning,) = caught
        print(warning.filename, kvemb.default_store().path, kvemb.default_store().path.is_dir(), warning.message)
        """
    )
    assert done.returncode == 0, done.stderr
    file, path, existed, message = done.stdout.split(" ", 3)
    assert existed == "True"
    assert path in message
    assert "deleted at exit" in message
    assert file == "<string>", "the warning points at the caller"
    assert not os.path.exists(path)


def test_the_innermost_store_comes_before_a_temporary_one():
    defaults, made = Defaults(), []

    def temporary():
        made.append(Handle("temporary"))
        defaults.stores.append(made[-1])
        return made[-1]

    defaults.temporary = temporary
    assert defaults.innermost() is defaults.innermost() is made[0]
    defaults.stores.append(inner := Handle("inner"))
    assert defaults.innermost() is inner
    assert len(made) == 1


def test_only_a_store_is_chosen(no_default, store):
    assert store_or_default(store) is store
    with store.as_default():
        assert store_or_default(None) is store
    variable = store.get_variable("users", dim=2)
    for wrong in (variable, store.path, Handle(store.path), 0, ""):
        with pytest.raises(TypeError, match=r"store must be a Store, got .*; use kvemb\.open\(path\)"):
            store_or_default(wrong)
