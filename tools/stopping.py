"""Ctrl-C and SIGTERM on the command line: both interrupt a command at the same points, so neither leaves files behind.

The exception that a signal handler raises can get lost: pandas, which pyarrow imports, swallows any exception raised
during its import. So the signal is remembered, and check() raises again whenever a command reports progress.
Handlers run in the main thread; check() may be called from any thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def signals_handled() -> Iterator[None]:
    """Within the block, SIGTERM raises Terminated and SIGINT KeyboardInterrupt; SIGINT stays ignored if it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ignored = before[signal.SIGINT] == signal.SIG_IGN

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and ignored:
            return
        _received.append(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def terminate(number: int, frame: FrameType | None) -> None:
        # By SIGINT's handler, which kvemb.threads.interrupts defers while rows move.
        handler = signal.getsignal(signal.SIGINT)
        assert callable(handler)
        handler(number, frame)

    _received.clear()
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def check() -> None:
    """Raise Terminated or KeyboardInterrupt if a signal was received."""
    if _received:
        raise interruption()


def interruption() -> KeyboardInterrupt:
    """Return the exception of the first signal received."""
    return Terminated() if _received[:1] == [signal.SIGTERM] else KeyboardInterrupt()
