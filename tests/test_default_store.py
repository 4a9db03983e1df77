"""kvemb.get_variable: the arguments and the help of Store.get_variable, and the store they are used in."""

from __future__ import annotations

import inspect
import os
import pydoc
import re

import pytest
from programs import run_python

import kvemb
from kvemb import Variable


def test_three_ways_to_a_variable_have_one_signature():
    """Each argument is written once, in kvemb.engine.arguments; mypy's view of it is in test_house."""
    given = dict(inspect.signature(kvemb.Store.get_variable).parameters)
    assert next(iter(given)) == "self"
    del given["self"]
    module = dict(inspect.signature(kvemb.get_variable).parameters)
    assert (module.pop("store").annotation, list(module)) == ("Store | None", list(given))
    made = dict(inspect.signature(Variable).parameters)
    assert (made.pop("store").annotation, sorted(made)) == ("Store | None", sorted(given))
    for name, argument in given.items():
        assert module[name] == argument
        assert (made[name].annotation, made[name].kind) == (argument.annotation, argument.kind), name
    assert inspect.signature(kvemb.Store.get_variable).return_annotation == "Variable"


@pytest.mark.parametrize("function", [kvemb.get_variable, kvemb.Store.get_variable])
def test_help_explains_every_argument(function):
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert "*args" not in text
    for name in list(inspect.signature(function).parameters):
        assert name == "self" or re.search(rf"^ +{name}: \S", text, re.MULTILINE), name


def test_the_store_that_is_given_is_used_and_else_the_innermost_default(open_store, tmp_path):
    outer, inner = open_store(tmp_path / "outer"), open_store(tmp_path / "inner")
    with outer.as_default(), inner.as_default():
        given = kvemb.get_variable("users", dim=2, store=outer)
        assert kvemb.get_variable("users", dim=3) is inner.variables["users"]
    assert given is outer.variables["users"]
    assert (given.dim, inner.variables["users"].dim) == (2, 3)


def test_a_temporary_store_is_used_as_any_other(no_default):
    with kvemb.temporary("8MiB") as made:
        users = kvemb.get_variable("users", dim=2)
        users.upsert([1], [[1.0, 2.0]])
        assert (users.lookup(1).tolist(), made.budget.total) == ([1.0, 2.0], 8 << 20)
    assert made.state.closed
    with pytest.raises(ValueError, match="memory_budget"):
        kvemb.temporary("lots")


@pytest.mark.slow
def test_a_temporary_store_is_deleted_at_exit(tmp_path):
    done = run_python(
        """
        import kvemb
        store = kvemb.temporary("8MiB")
        kvemb.get_variable("users", dim=2, store=store).upsert([1], [[1.0, 2.0]])
        with kvemb.temporary("8MiB") as closed:
            kvemb.get_variable("users", dim=2).upsert([1], [[1.0, 2.0]])
        print(store.path, store.path.is_dir(), closed.path)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    path, existed, other = done.stdout.split()
    assert existed == "True"
    assert not os.path.exists(path)
    assert not os.path.exists(other)
