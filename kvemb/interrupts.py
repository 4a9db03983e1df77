"""Deferred Ctrl-C. A KeyboardInterrupt while a row moves between tiers would lose the row, and one in the few lines
in which Python's Event or Future takes its lock would leave the lock taken and other threads waiting.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")
# Seconds for which a waiting thread may delay Ctrl-C.
TURN_SECONDS = 0.1


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGINT's handler until the block has ended. Python runs it on the main thread only."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    caught: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])


def wait_for(event: threading.Event) -> None:
    """Wait until the event is set."""
    while not event.is_set():
        with uninterrupted():
            event.wait(TURN_SECONDS)


def result_of(future: Future[Result], timeout: float | None = None) -> Result:
    """Wait for a result. Raises what the future failed with; TimeoutError after timeout seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        with uninterrupted():
            turn = TURN_SECONDS if end is None else max(0.0, min(TURN_SECONDS, end - time.monotonic()))
            if wait([future], turn).done:
                return future.result()
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"it is not done after {timeout} seconds; wait longer, or ask done()")
