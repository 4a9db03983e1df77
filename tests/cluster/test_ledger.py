"""A call that arrives again is not executed again, and returns the same result."""

from __future__ import annotations

import threading

import pytest

from kvemb.cluster.ledger import MAX_CLIENTS, Ledger, Stamp, joined_calls


def test_a_call_is_made_once_and_answers_as_often_as_it_arrives():
    ledger, made = Ledger(), []
    for _ in range(3):
        assert ledger.once(Stamp("a", 0, 0, 1), lambda: made.append(1) or len(made)) == 1
    assert ledger.once(Stamp("b", 0, 0, 1), lambda: made.append(1) or len(made)) == 2
    assert made == [1, 1]


def test_a_failure_is_an_answer():
    ledger, made = Ledger(), []

    def fail():
        made.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            ledger.once(Stamp("a", 0, 0, 1), fail)
    assert made == [1]


def test_numbers_may_arrive_in_any_order_and_answered_ones_are_forgotten_but_known():
    ledger, made = Ledger(), []
    for number in (2, 0, 1):
        ledger.once(Stamp("a", number, 0, 1), lambda number=number: made.append(number))
    ledger.once(Stamp("a", 3, 3, 1), lambda: made.append(3))
    assert ledger.once(Stamp("a", 1, 0, 1), lambda: made.append(1)) is None
    assert made == [2, 0, 1, 3]


def test_one_that_arrives_while_it_is_made_waits_for_it():
    ledger, begun, go, answers = Ledger(), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go.wait(60)
        return "done"

    def call():
        answers.append(ledger.once(Stamp("a", 0, 0, 1), work))

    threads = [threading.Thread(target=call) for _ in range(2)]
    threads[0].start()
    begun.wait(60)
    threads[1].start()
    threads[1].join(0.05)
    assert answers == []
    go.set()
    for thread in threads:
        thread.join()
    assert answers == ["done", "done"]


def begun(ledger, stamp):
    with ledger.using(stamp) as uses:
        return uses


def test_a_read_that_arrives_again_is_known():
    ledger = Ledger()
    assert [begun(ledger, Stamp("a", number, 0, 1)) for number in (0, 0, 1)] == [True, False, True]
    with ledger.using(None) as uses:
        assert not uses


def test_clients_that_called_last_are_remembered():
    ledger = Ledger()
    for number in range(MAX_CLIENTS + 1):
        assert begun(ledger, Stamp(str(number), 0, 0, 1))
    assert not begun(ledger, Stamp("1", 0, 0, 1))
    assert begun(ledger, Stamp("0", 0, 0, 1))


def test_calls_that_any_shard_has_made_are_known_to_the_new_ones():
    """A client sends a call again if it does not know whether a checkpoint has it."""
    joined = joined_calls([{"a": [2, 2, 5]}, {"a": [3, 3, 5], "b": [0, 1]}, {}])
    assert joined == {"a": [3, 3, 5], "b": [0, 1]}
    ledger, made = Ledger(), []
    ledger.add(joined)
    assert ledger.to_json() == joined
    for client, number in [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 5), ("b", 0), ("b", 1)]:
        ledger.once(Stamp(client, number, 0, 1), lambda call=(client, number): made.append(call))
    assert made == [("a", 4), ("b", 0)]


def test_a_cut_waits_for_calls_that_are_being_executed_and_returns_them():
    ledger, begun, go, held = Ledger(), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go.wait(60)

    call = threading.Thread(target=lambda: ledger.once(Stamp("a", 7, 0, 3), work))
    call.start()
    begun.wait(60)
    cut = threading.Thread(target=lambda: held.append(ledger.hold(1, "coordinator")))
    cut.start()
    cut.join(0.05)
    assert held == []
    go.set()
    for thread in (call, cut):
        thread.join(60)
    assert held == [{"a": (0, {7: 3})}]
