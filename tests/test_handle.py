"""What stands for something that is in one place only."""

from __future__ import annotations

import copy

from kvemb.handle import Handle, inside


def test_copies_are_the_handle_itself():
    handle = Handle([1])
    assert copy.copy(handle) is handle
    assert copy.deepcopy({"a": handle})["a"] is handle


def test_inside_is_what_it_stands_for():
    thing = object()
    assert inside(Handle(thing)) is thing
