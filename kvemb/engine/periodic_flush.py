"""A durable point every few seconds, begun on a thread of its own: what kvemb.open(flush_every=) asks for.

The thread refers to its store weakly, so a store that nothing else refers to is still found not closed. It ends with
the store. While the store is poisoned it flushes nothing: recover() is for who has removed the cause.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from kvemb.checks.seconds import as_seconds
from kvemb.engine.engine import Engine

_logger = logging.getLogger("kvemb")


def as_flush_every(given: float | None) -> float | None:
    """Return the `flush_every` argument. Raises TypeError or ValueError."""
    return None if given is None else as_seconds(given, "flush_every")


def run_flushes(engine: Engine, seconds: float, wait: Callable[[float], bool]) -> threading.Thread:
    """Start the thread. wait: waits for so many seconds, or until the store is closed; returns whether it is."""
    reference = weakref.ref(engine)
    del engine

    def run() -> None:
        while not wait(seconds):
            if (there := reference()) is None or not begin_flush(there):
                return
            del there  # otherwise this thread would keep the store alive while it waits

    thread = threading.Thread(target=run, name="kvemb-flush", daemon=True)
    thread.start()
    return thread


def begin_flush(engine: Engine) -> bool:
    """Begin a durable point, unless one is being written or nothing changed since the last one.

    Returns whether the store is open. A failure while the point is written is reported like one of a checkpoint with
    block=False.
    """
    with engine.lock:
        if engine.state.gone:
            return False
        try:
            if engine.state.cause is None and engine.checkpointer.is_idle:
                engine.checkpointer.flush(engine.parts())
        except Exception as error:
            if engine.state.cause is not None:
                return True  # the next write raises Poisoned
            if threading.main_thread().is_alive():  # otherwise Python ends, and starts no thread
                _logger.warning("the background flush of %s failed, and will be tried again: %r", engine.path, error)
        return True
