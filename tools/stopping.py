"""Ctrl-C and SIGTERM on the command line: both end what runs at the same places, so both leave nothing behind.

The exception that a signal raises can get lost: pandas, which pyarrow imports by itself, swallows whatever is raised
while it is being imported. So the signal is remembered, and check() raises again wherever a command reports progress.
Signals reach the main thread; check() may be called from any thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_asked: list[int] = []
_heeded = False


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextmanager
def heeded() -> Iterator[None]:
    """Within it, SIGTERM raises Terminated as Ctrl-C raises KeyboardInterrupt; where SIGINT was ignored it stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ignored = before[signal.SIGINT] == signal.SIG_IGN

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and ignored:
            return
        stop(number)

    def terminate(number: int, frame: FrameType | None) -> None:
        # By way of SIGINT's handler, which is put off while rows move (kvemb.interrupts).
        handler = signal.getsignal(signal.SIGINT)
        assert callable(handler)
        handler(number, frame)

    global _heeded
    _asked.clear()
    _heeded = True
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _heeded = False
        _asked.clear()


def stop(number: int) -> NoReturn:
    """Raise what a signal stands for."""
    if _heeded:
        _asked.append(number)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def check() -> None:
    """Raise Terminated or KeyboardInterrupt if a signal has come."""
    if _asked:
        raise interruption()


def interruption() -> KeyboardInterrupt:
    """What to raise for the signal that came first."""
    return Terminated() if _asked[:1] == [signal.SIGTERM] else KeyboardInterrupt()
