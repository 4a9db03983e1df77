"""The gate of calls: many at a time, or one cut, which runs alone.

The time between two cuts is an epoch. A cut waits for the calls of its epoch and holds back those of the next, so each
call is entirely before or after it, on all shards. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvemb.interrupts import TURN_SECONDS, uninterrupted


class Epochs:
    """A gate that calls and cuts pass. number: of the epoch, from 0."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = threading.Condition()
        self._calls, self._cutting = 0, False

    @contextmanager
    def call(self) -> Iterator[int]:
        """Be a call of the epoch whose number is given; waits while a cut is made. Ctrl-C ends the wait."""
        entered = False
        try:
            while not entered:
                with uninterrupted(), self._changed:
                    if self._cutting:
                        self._changed.wait(TURN_SECONDS)
                    else:
                        self._calls += 1
                        entered = True
            yield self.number
        finally:
            if entered:
                with uninterrupted(), self._changed:  # a call that never ended would stop the next cut
                    self._calls -= 1
                    self._changed.notify_all()

    @contextmanager
    def cut(self) -> Iterator[int]:
        """Be alone: waits for the calls under way, and for another cut. The next epoch begins when the block ends.

        REQUIRES: this thread is in no call and in no cut.
        """
        taken = alone = False
        try:
            while not alone:
                with uninterrupted(), self._changed:
                    if not (taken or self._cutting):
                        self._cutting = taken = True
                    alone = taken and self._calls == 0
                    if not alone:
                        self._changed.wait(TURN_SECONDS)
            yield self.number
        finally:
            if taken:
                with uninterrupted(), self._changed:
                    self._cutting = False
                    self.number += 1
                    self._changed.notify_all()
