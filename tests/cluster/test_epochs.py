"""Each call is in one epoch: a cut waits for those of its own, and holds back those of the next."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from kvemb.cluster.epochs import Epochs


def test_no_call_is_on_both_sides_of_a_cut():
    epochs, state, seen, stop = Epochs(), [0, 0], [], threading.Event()

    def call():
        while not stop.is_set():
            with epochs.call() as number:
                state[0] += 1
                time.sleep(1e-4)
                assert epochs.number == number
                state[1] += 1

    threads = [threading.Thread(target=call)]  # one caller: its two writes are one call
    for thread in threads:
        thread.start()
    for number in range(30):
        with epochs.cut() as at:
            assert at == number
            seen.append(state[0] == state[1])
    stop.set()
    for thread in threads:
        thread.join()
    assert all(seen)
    assert epochs.number == 30


def test_calls_overlap_and_cuts_do_not():
    epochs, inside, most = Epochs(), [], []
    both = threading.Barrier(2, timeout=10)

    def call():
        with epochs.call():
            both.wait()  # both are inside at once

    def cut():
        with epochs.cut():
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    for work in (call, cut):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1, 1]


def test_a_call_that_fails_has_ended():
    epochs = Epochs()
    for block in (epochs.call, epochs.cut):
        try:
            with block():
                raise KeyError
        except KeyError:
            pass
    with epochs.cut() as number:
        assert number == 1


class Interrupted(threading.Condition):
    """Ctrl-C comes when it is entered."""

    def __enter__(self):
        entered = super().__enter__()
        signal.raise_signal(signal.SIGINT)
        return entered


@pytest.mark.parametrize("block", [Epochs.call, Epochs.cut])
def test_ctrl_c_at_either_end_of_a_block_holds_up_no_other(block):
    epochs = Epochs()
    usual = epochs._changed

    def alone():
        with epochs.cut():
            pass

    epochs._changed = Interrupted()
    with pytest.raises(KeyboardInterrupt), block(epochs):
        raise AssertionError("it was interrupted before")
    epochs._changed = usual
    with pytest.raises(KeyboardInterrupt), block(epochs):
        epochs._changed = Interrupted()
    epochs._changed = usual
    other = threading.Thread(target=alone, daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()
