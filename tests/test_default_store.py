"""kvemb.get_variable: the arguments and the help of Store.get_variable, and the store they are used in."""

from __future__ import annotations

import inspect
import pydoc
import re

import pytest

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
