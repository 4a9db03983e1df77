"""The arguments with which a store is opened: what is refused. test_opening.py and test_resuming.py show when."""

from __future__ import annotations

import pytest

from kvemb.engine.open_arguments import OpenArguments, as_names
from kvemb.limits import DEFAULT


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"memory_budget": "lots"}, ValueError, "memory_budget must be text such as"),
        ({"device_memory": 1.5}, TypeError, "device_memory must be an int"),
        ({"durability": "always"}, ValueError, "durability must be 'checkpoint' or 'write', got 'always'"),
        ({"durability": "write", "follow": True}, ValueError, "durability='write' needs a writable store"),
        ({"flush_every": 0}, ValueError, "flush_every must be a number of seconds"),
        ({"flush_every": 1, "read_only": True}, ValueError, "flush_every needs a writable store"),
        ({"read_only": "false"}, TypeError, "read_only must be True or False, got str 'false'"),
        ({"follow": 1}, TypeError, "follow must be True or False, got int 1"),
        ({"warm": None}, TypeError, "warm must be True or False"),
        ({"keep_marks": 1.5}, TypeError, "keep_marks must be an int"),
        ({"limits": None}, TypeError, r"limits must be a kvemb\.limits\.Limits, got None"),
    ],
)
def test_what_is_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        OpenArguments(**wrong)


def test_defaults_are_those_of_open():
    assert OpenArguments(limits=DEFAULT) == OpenArguments()
    assert [OpenArguments(**given).reads for given in ({}, {"read_only": True}, {"follow": True})] == [
        False,
        True,
        True,
    ]


def test_names_of_variables():
    assert as_names(None) is None
    assert as_names([]) == set()
    assert as_names(("a", "b", "a")) == as_names({"a": 1, "b": 2}.keys()) == {"a", "b"}
    for wrong in ("users", b"users", 3, [3], iter(["users"])):
        with pytest.raises(TypeError, match=r"variables must be a list of names such as \['users'\], got "):
            as_names(wrong)
