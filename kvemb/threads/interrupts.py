"""Deferred Ctrl-C. A KeyboardInterrupt while a row moves between tiers would lose the row. One while Python's Event or
Future takes its lock would leave the lock taken, and other threads would wait forever; one while a pool starts a thread
would leave a thread that the pool does not know, and whose work its end does not wait for.
"""

from __future__ import annotations

import threading
import time

# The module signal adds conversions to enums, which take eight times as long as these functions.
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found,unused-ignore]
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
# Seconds for which a waiting thread may delay Ctrl-C.
TURN_SECONDS = 0.1


class uninterrupted:  # noqa: N801 -- as contextlib.suppress
    """A block during which Ctrl-C is deferred: SIGINT's handler, which Python runs on the main thread only."""

    __slots__ = ("_caught", "_handler")

    def __enter__(self) -> None:
        self._handler: Any = None
        if threading.get_ident() == threading.main_thread().ident and callable(handler := getsignal(SIGINT)):
            self._caught: list[tuple[int, Any]] = []
            self._handler = handler
            signal(SIGINT, lambda number, frame: self._caught.append((number, frame)))

    def __exit__(self, *failure: object) -> None:
        if self._handler is not None:
            signal(SIGINT, self._handler)
            if self._caught:
                self._handler(*self._caught[0])


def is_done(future: Future[Any]) -> bool:
    """Return whether a future is complete or has failed."""
    with uninterrupted():
        return future.done()


def wait_for(event: threading.Event) -> None:
    """Wait until the event is set."""
    while not event.is_set():
        with uninterrupted():
            event.wait(TURN_SECONDS)


def result_of(future: Future[Result], timeout: float | None = None) -> Result:
    """Wait for a result. Raises the future's exception; TimeoutError after timeout seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        with uninterrupted():
            turn = TURN_SECONDS if end is None else max(0.0, min(TURN_SECONDS, end - time.monotonic()))
            try:
                return future.result(turn)
            except TimeoutError:
                if future.done():  # the future may have failed with a TimeoutError
                    return future.result()
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"not done after {timeout} seconds; call result() again to wait, or done() to ask")
