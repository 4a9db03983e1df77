"""The lock of a variable: who may enter, who waits, and what a failure inside it means."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from kvemb.errors import Closed, ColdStoreError, Poisoned
from kvemb.store_state import StoreState
from kvemb.tiers.access import TableAccess

PATIENCE = 30.0
SOON = 0.05


@pytest.fixture
def access() -> TableAccess:
    return TableAccess(StoreState("test"))


class Caller(threading.Thread):
    """Enters a block on a thread of its own. entered: set once it is inside."""

    def __init__(self, block: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(daemon=True)
        self.block, self.entered = block, threading.Event()
        self.start()

    def run(self) -> None:
        with self.block():
            self.entered.set()


def test_one_is_inside_at_a_time(access):
    with access.held():
        other = Caller(access.held)
        assert not other.entered.wait(SOON)
    assert other.entered.wait(PATIENCE)


def test_a_lock_that_is_given_up_lets_others_in_and_is_held_again_after(access):
    with access.held():
        with access.given_up():
            assert Caller(access.held).entered.wait(PATIENCE)
        assert not Caller(access.held).entered.wait(SOON)


def test_who_needs_no_snapshot_waits_for_its_end(access):
    with access.held():
        access.set_snapshot(True)
    other = Caller(access.held_without_snapshot)
    assert not other.entered.wait(SOON)
    assert Caller(access.held).entered.wait(PATIENCE), "others need not wait"
    with access.held():
        access.set_snapshot(False)
    assert other.entered.wait(PATIENCE)


@pytest.mark.parametrize("freed", ["by room", "by the end of the snapshot"])
def test_where_a_snapshot_has_no_room_callers_wait_outside_the_lock(access, freed):
    with access.held():
        access.set_room(False)
    waiting = threading.Thread(target=access.wait_for_room, daemon=True)
    waiting.start()
    waiting.join(SOON)
    assert waiting.is_alive()
    with access.held():  # which it does not hold
        if freed == "by room":
            access.set_room(True)
        else:
            access.set_snapshot(False)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_a_failed_write_is_poisoned_to_the_call_that_meets_it(access):
    cause = ColdStoreError("disk full")
    with pytest.raises(Poisoned, match="disk full") as raised, access.poisoning():
        raise cause
    assert raised.value.__cause__ is cause
    assert access.state.cause is cause


def test_another_failure_is_raised_as_it_is_and_poisons_later_calls(access):
    with pytest.raises(ZeroDivisionError), access.poisoning():
        raise ZeroDivisionError
    with pytest.raises(Poisoned):
        access.state.check_writable()


def test_a_forked_process_is_told_before_any_lock_is_taken(access, monkeypatch):
    monkeypatch.setattr(access.state, "_process", 0)
    with access._lock:  # nobody would ever free it
        for entered in (access.held, access.held_without_snapshot):
            with pytest.raises(Closed, match="fork"), entered():
                pass
        with pytest.raises(Closed, match="fork"):
            access.wait_for_room()
