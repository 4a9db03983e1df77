"""The arguments that make a variable: those of the reference, and what tells that one was left out."""

from __future__ import annotations

import inspect

import pytest

import kvemb
from kvemb import Variable
from kvemb.engine.arguments import (
    DIM,
    KEY_DTYPE,
    VALUE_DTYPE,
    Arguments,
    ReferenceArguments,
    UnsetFlag,
    UnsetInt,
    UnsetName,
)
from kvemb.tiers.partition import default_partitioner


def test_arguments_have_the_references_names_order_and_defaults():
    expected = {
        "key_dtype": "int64", "value_dtype": "float32", "dim": 1, "devices": None, "partitioner": default_partitioner,
        "shared_name": None, "name": "DynamicEmbedding_Variable", "initializer": None, "trainable": True,
        "checkpoint": True, "init_size": 0, "kv_creator": None, "restrict_policy": None, "bp_v2": False,
    }  # fmt: skip
    given = inspect.signature(Variable).parameters
    plain = {name: p.default for name, p in given.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(plain.items()) == list(expected.items())
    assert [name for name, p in given.items() if p.kind is p.KEYWORD_ONLY][:2] == ["store", "optimizer"]
    given = inspect.signature(kvemb.get_variable).parameters
    del expected["name"]
    plain = {name: p.default for name, p in given.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert next(iter(plain)) == "name"
    del plain["name"]
    expected["shared_name"] = "get_variable"
    assert list(plain.items()) == list(expected.items())


def test_a_default_is_the_number_or_the_name_it_stands_for_and_is_told_from_one_given():
    left_out = Arguments("users")
    assert (left_out.dim, left_out.key_dtype, left_out.value_dtype) == (1, "int64", "float32")
    assert (left_out.dim, left_out.key_dtype, left_out.value_dtype) == (DIM, KEY_DTYPE, VALUE_DTYPE)
    assert isinstance(left_out.dim, UnsetInt)
    assert isinstance(left_out.key_dtype, UnsetName)
    given = Arguments("users", "int64", "float32", 1)
    assert not isinstance(given.dim, UnsetInt)
    assert not isinstance(given.key_dtype, UnsetName)
    assert not isinstance(given.value_dtype, UnsetName)


@pytest.mark.parametrize("function", [Variable, kvemb.get_variable, kvemb.Store.get_variable])
def test_flags_that_are_left_out_are_shown_as_the_references(function):
    given = inspect.signature(function).parameters
    shown = [f"{given[name]}".split(" = ")[1] for name in ("trainable", "checkpoint", "bp_v2")]
    assert shown == ["True", "True", "False"]
    left_out, asked = Arguments("users"), Arguments("users", trainable=True, checkpoint=False, bp_v2=False)
    for name in ("trainable", "checkpoint", "bp_v2"):
        assert isinstance(getattr(left_out, name), UnsetFlag)
        assert not isinstance(getattr(asked, name), UnsetFlag)


def test_the_name_comes_first_or_after_shared_name():
    assert Arguments("users", "int32").key_dtype == "int32"
    made = ReferenceArguments("int32", "float16", 4, "cpu", default_partitioner, "shared", "users")
    assert (made.key_dtype, made.shared_name, made.name) == ("int32", "shared", "users")
