"""Handles: public objects that stand for an internal one; a copy of a handle is the handle itself."""

from __future__ import annotations

import copy

import kvemb
from kvemb.handle import Handle, inside


def test_a_handle_stands_for_one_thing_and_its_copies_are_the_handle_itself():
    handle = Handle(thing := [1])
    assert inside(handle) is thing
    assert copy.copy(handle) is handle
    assert copy.deepcopy({"a": handle})["a"] is handle


def test_what_users_see_of_a_variable_and_a_store_does_not_grow() -> None:
    variable = {name for name in dir(kvemb.Variable) if not name.startswith("_")}
    assert variable == {
        "accum", "apply_gradients", "bp_v2", "clear", "devices", "dim", "export", "export_batches",
        "initializer", "get_slot_variables", "key_dtype", "lookup", "lookup_slot", "max_rows", "name", "optimizer",
        "partitioner", "persistent", "prefetch", "remove", "resource_handle", "restrict", "restrict_policy",
        "size", "stats", "tables", "trainable", "ttl", "upsert", "value_dtype",
    }  # fmt: skip
    store = {name for name in dir(kvemb.Store) if not name.startswith("_")}
    assert store == {
        "apply_delta", "apply_gradients", "as_default", "check", "checkpoint", "close", "drop_mark", "drop_variable",
        "flush", "get_collection", "get_variable", "id", "lookup", "mark", "marks", "memory", "point", "prefetch",
        "recover", "refresh", "rollback", "stats", "variables",
    }  # fmt: skip
