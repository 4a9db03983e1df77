"""Deferred signal handlers. Python runs a handler between any two instructions of the main thread. There, one that
raises while a row moves between tiers would lose the row; one that saves would wait for a lock that the call below it
holds; one that raises while a pool starts a thread would leave a thread that the pool does not know.

So a handler that is due in a block of `uninterrupted` runs when the outermost such block ends. There it may raise, save
or close. Other threads need no such block, because Python runs handlers on the main thread only.

The first block replaces each handler by _Handlers.deliver, which asks whether a block is open. The two functions of
_signal through which Python's module signal sets and reads handlers are replaced, too: so later handlers are treated
alike, and users see their own. Then a block costs no system call.
"""

from __future__ import annotations

# signal.signal and signal.getsignal look these functions up at each call.
import _signal  # type: ignore[import-not-found,unused-ignore]
import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
# Seconds for which a waiting thread may delay a handler.
TURN_SECONDS = 0.1


class uninterrupted:  # noqa: N801 -- as contextlib.suppress
    """A block during which signal handlers are deferred. Blocks may be nested."""

    __slots__ = ("_counted", "_open")

    def __enter__(self) -> None:
        self._counted = threading.get_ident() == _handlers.thread
        self._open = True
        if self._counted:
            _handlers.depth += 1
            if not _handlers.replaced and _handlers.depth == 1:
                _handlers.replace_all()

    def __exit__(self, *failure: object) -> None:
        self._open = False
        if self._counted:
            self._counted = False
            _handlers.depth -= 1
            if _handlers.due and not _handlers.depth:
                _handlers.run_due()

    def __del__(self) -> None:
        # __exit__ was not called, or not to its end: another thread raised an exception here. What a handler raised in
        # this method would be lost, so handlers that are due wait for the end of another block.
        if getattr(self, "_open", False):
            due, _handlers.due = _handlers.due, set()
            self.__exit__()
            _handlers.due |= due


class _Handlers:
    """The process' signal handlers. Only the main thread changes them.

    thread: the main thread's id. depth: how many blocks are open. due: signals whose handlers wait for their end.
    replaced: whether every handler is replaced, and will be.
    """

    def __init__(self) -> None:
        self.depth, self.due, self.replaced = 0, set[int](), False
        self.thread = threading.main_thread().ident
        self._own: dict[int, Any] = {}  # the users'
        self._deliver, self._set, self._get = self.deliver, _signal.signal, _signal.getsignal

    def replace_all(self) -> None:
        """Replace the handlers that there are, and see to it that later ones are replaced. REQUIRES: an open block."""
        _signal.signal, _signal.getsignal = self.set, self.get
        for number in map(int, signal.valid_signals()):
            if callable(handler := self._get(number)) and handler is not self._deliver:
                self.set(number, handler)
        # In a Python whose module signal works differently, each block looks for new handlers.
        self.replaced = getattr(signal.signal, "__globals__", {}).get("_signal") is _signal

    def set(self, number: int, handler: Any) -> Any:
        """Do what _signal.signal does."""
        replaced = self._deliver if callable(handler) else handler
        with uninterrupted():
            before = self._set(number, replaced)
            own = self._own.pop(number, None)
            if replaced is handler:
                self.due.discard(number)
            else:
                self._own[number] = handler
        return own if before is self._deliver else before

    def get(self, number: int) -> Any:
        """Do what _signal.getsignal does."""
        handler = self._get(number)
        return self._own[number] if handler is self._deliver else handler

    def deliver(self, number: int, frame: Any) -> Any:
        """Run the handler of a signal, or defer it. Python calls this."""
        if self.depth:
            self.due.add(number)
        else:
            self._own[number](number, frame)

    def run_due(self) -> None:
        """Run the handlers of signals that are due. What one of them raises is raised when all have run."""
        try:
            number = self.due.pop()
        except KeyError:  # a handler that came meanwhile has opened a block of its own, whose end ran them
            return
        try:
            signal.raise_signal(number)
        finally:
            if self.due:
                self.run_due()

    def after_fork(self) -> None:
        """In a new process, the thread that forked is the main thread; no signal is due."""
        if self.thread != (forked := threading.main_thread().ident):
            self.thread, self.depth = forked, 0
        self.due.clear()


_handlers = _Handlers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_handlers.after_fork)


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
