"""Keeps the threads of a pool off the core of the thread that waits for them.

Linux wakes a thread on the core it ran on last. If that is the waking thread's core by now, and the cores were busy a
moment ago, it looks for no other one. Then both share a core, for one batch after another, while another core is idle.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache


class OtherCores:
    """The threads of one pool. Thread-safe: which of several callers' cores is avoided does not matter."""

    def __init__(self) -> None:
        self._avoided: dict[threading.Thread, int] = {}

    def add_this_thread(self) -> None:
        """Add the calling thread to the pool."""
        if _current_core() is not None:
            self._avoided[threading.current_thread()] = -1

    def avoid_this_core(self) -> None:
        """Make the pool's threads run on other cores than this one, of those that the caller may use."""
        core = _current_core()
        for thread, avoided in list(self._avoided.items()):
            if core is not None and core != avoided and thread.is_alive():
                self._avoided[thread] = core
                # Fails if there is no other core, or the system does not allow it.
                with suppress(OSError):
                    os.sched_setaffinity(thread.native_id or 0, os.sched_getaffinity(0) - {core})


def _current_core() -> int | None:
    """Return the core that this thread runs on, None if the system does not say."""
    ask = _sched_getcpu()
    core = -1 if ask is None else ask()
    return None if core < 0 else core


@cache
def _sched_getcpu() -> Callable[[], int] | None:
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)
