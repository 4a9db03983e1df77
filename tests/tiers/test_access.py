"""The lock of a variable: who may enter, who waits, and what a failure inside it means."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import Mock

import pytest
from blocks import InFlight

from kvemb.errors import Closed, ColdStoreError, Poisoned
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.tiers.access import HeldForCall, TableAccess

PATIENCE = 60.0
SOON = 0.05


@pytest.fixture
def access() -> TableAccess:
    return TableAccess(StoreState("test"), InFlight())


class Caller(threading.Thread):
    """Enters a block on a thread of its own. entered: set once it is inside."""

    def __init__(self, block: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(daemon=True)
        self.block, self.entered = block, threading.Event()
        self.start()

    def run(self) -> None:
        with self.block():
            self.entered.set()


def test_a_lock_that_is_given_up_lets_others_in_and_is_held_again_after(access):
    with access.held():
        with access.released():
            assert Caller(access.held).entered.wait(PATIENCE)
        assert not Caller(access.held).entered.wait(SOON)


def block_of(access: TableAccess, how: str, **land: bool) -> AbstractContextManager[object]:
    if how == "interruptible":
        return access.held_without_snapshot(interruptible=True)
    if how == "call":
        return HeldForCall(access, lambda: None, Stats(), "seconds_lookup", **land)
    return getattr(access, how)(**land)


@pytest.mark.parametrize("how", ["held", "held_without_snapshot", "interruptible", "held_if_free", "call"])
def test_whoever_takes_the_lock_next_first_lands_what_is_in_flight_once(access, how):
    access.in_flight.left = 1
    with block_of(access, how):
        assert access.in_flight.landed == 1
    with access.held():
        assert access.in_flight.landed == 1


@pytest.mark.parametrize("how", ["held", "held_if_free", "call"])
def test_who_needs_no_rows_leaves_them_in_flight(access, how):
    access.in_flight.left = 1
    with block_of(access, how, land=False):
        assert access.in_flight.landed == 0
    with access.held():
        assert access.in_flight.landed == 1


def test_a_call_that_reads_cold_rows_finds_in_flight_what_others_left_meanwhile(access):
    with access.held():
        with access.released(), access.held():
            access.in_flight.left = 1
        assert access.in_flight.landed == 0


def test_ctrl_c_ends_the_waiting_for_the_lock_and_leaves_it_as_it_was(access):
    release = threading.Event()

    class Holder(Caller):
        def run(self):
            with self.block():
                self.entered.set()
                release.wait(PATIENCE)

    holder = Holder(access.held)
    holder.entered.wait(PATIENCE)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGINT)).start()
        with access.held():
            pass
    assert not Caller(access.held).entered.wait(SOON), "it is not freed by who does not hold it"
    release.set()
    with access.held():
        pass


def test_ctrl_c_while_it_is_held_comes_when_it_is_free(access):
    steps = []

    def work():
        with access.held():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["end"]
    assert Caller(access.held).entered.wait(PATIENCE)


def test_a_call_whose_beginning_fails_leaves_the_lock_free(access):
    stats = Stats()

    def begin():
        raise Closed("gone")

    with pytest.raises(Closed, match="gone"), HeldForCall(access, begin, stats, "seconds_lookup"):
        pytest.fail("the block must not run")
    assert Caller(access.held).entered.wait(PATIENCE)
    assert stats.seconds_lookup > 0


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
    monkeypatch.setattr(access.state, "process", 0)
    with access._lock:  # nobody would ever free it
        for entered in (access.held, access.held_without_snapshot):
            with pytest.raises(Closed, match="fork"), entered():
                pass
        access.set_room(False)
        with pytest.raises(Closed, match="fork"):
            access.wait_for_room()


def test_a_lock_that_an_ended_thread_has_left_taken_is_made_anew_and_the_store_is_poisoned(access):
    left = threading.Thread(target=lambda: access.take(PATIENCE))
    left.start()
    left.join()
    with access.held():
        pass
    with pytest.raises(Poisoned, match="another thread"):
        access.state.check_writable()


def test_a_lock_that_this_thread_has_left_taken_is_free_again_and_the_store_is_poisoned(access):
    access.take(PATIENCE)
    with access.held():
        pass
    assert Caller(access.held).entered.wait(PATIENCE)
    with pytest.raises(Poisoned, match="another thread"):
        access.state.check_writable()


def test_a_call_that_could_not_take_its_lock_again_releases_no_other_one(access):
    with access.held():
        access._lock.release()
        other = Caller(access.held)
        assert other.entered.wait(PATIENCE)
    with pytest.raises(Poisoned, match="another thread"):
        access.state.check_writable()


def test_a_handler_that_uses_a_variable_while_it_is_loaded_is_refused(access):
    with (
        access.held_without_snapshot(interruptible=True),
        pytest.raises(RuntimeError, match="a load into it"),
        access.held(),
    ):
        pass
    access.state.check_writable()


def test_whatever_ends_a_block_that_moves_rows_poisons_the_store(access):
    with pytest.raises(KeyboardInterrupt), access.poisoning():
        raise KeyboardInterrupt
    with pytest.raises(Poisoned):
        access.state.check_writable()


def test_two_exceptions_that_end_a_block_that_moves_rows_poison_the_store(access, monkeypatch):
    """The second one comes before the first has poisoned it."""
    with monkeypatch.context() as patched, access.held():
        patched.setattr(access.state, "poison", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), access.poisoning():
            raise ValueError
    access.state.check_writable()
    with access.held(), pytest.raises(Poisoned, match="another thread"):
        access.state.check_writable()


def test_a_block_that_left_all_rows_whole_lets_the_store_recover(access):
    with access.held():
        poisoning = access.poisoning()
        poisoning.intact = True
        with pytest.raises(Poisoned), poisoning:
            raise ColdStoreError("disk full")
    with access.held():
        access.state.check_whole()
