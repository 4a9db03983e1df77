"""Whether a store may be read and written, and the messages of refusals."""

from __future__ import annotations

import pytest

from kvemb.errors import Closed, Poisoned, ReadOnly
from kvemb.store_state import DroppedState, StoreState


def test_an_open_store_may_be_read_and_written():
    state = StoreState("here")
    state.check_open()
    state.check_writable()
    assert state.keeps_uses
    assert not state.gone


def test_a_read_only_store_refuses_writes_alone():
    state = StoreState("here", read_only=True)
    state.check_open()
    assert not state.keeps_uses
    with pytest.raises(ReadOnly, match="here is read-only"):
        state.check_writable()


def test_a_poisoned_store_tells_its_first_cause_and_reads_go_on():
    state, first = StoreState("here"), OSError("disk full")
    state.poison(first)
    state.poison(OSError("later"))
    state.check_open()
    assert not state.keeps_uses
    for check in (state.check_sound, state.check_writable):
        with pytest.raises(Poisoned, match="disk full") as raised:
            check()
        assert raised.value.__cause__ is first


def test_a_closed_store_refuses_all_and_still_tells_that_it_was_poisoned():
    state = StoreState("here")
    state.poison(OSError("disk full"))
    state.close()
    assert state.gone
    for check in (state.check_open, state.check_writable):
        with pytest.raises(Closed, match="here is closed"):
            check()
    with pytest.raises(Poisoned):
        state.check_sound()


def test_a_forked_process_is_told_first(monkeypatch):
    state = StoreState("here")
    state.close()
    monkeypatch.setattr(state, "process", 0)
    assert state.forked
    with pytest.raises(Closed, match="does not survive a fork"):
        state.check_open()


def test_what_has_ended_says_why_and_its_store_goes_on():
    state = StoreState("here")
    with pytest.raises(Closed, match="it was dropped"):
        DroppedState(state, "it was dropped").check_open()
    state.check_open()
