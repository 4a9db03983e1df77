"""Calls of native code that takes the GIL again before it returns, and so must have returned when the interpreter ends.

Python then ends every daemon thread that asks for the GIL, by unwinding its stack. rocksdict, which is Rust, cannot be
unwound like that, and aborts the process. So when the functions of atexit have run, a daemon thread that calls native
code gets SystemExit, which ends a thread silently, and those that are in native code are waited for. Thread-safe.
"""

from __future__ import annotations

import os
import threading
import time

# A disk may hang, and an exception of another thread may have come before a call was counted as ended.
PATIENCE_SECONDS = 30.0
# The threads in native code, each once for each call: append and remove are atomic under the GIL.
_inside: list[int] = []
_ended = [False]


class native_code:  # noqa: N801 -- as contextlib.suppress
    """A block that calls such code. Raises SystemExit in a daemon thread when the program has ended. May be nested."""

    __slots__ = ()

    def __enter__(self) -> None:
        thread = threading.get_ident()
        _inside.append(thread)  # before the look: end_native_code() looks in the other order
        if _ended[0] and thread != threading.main_thread().ident:
            _inside.remove(thread)
            raise SystemExit

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _inside.remove(threading.get_ident())


def end_native_code() -> None:
    """Let no other thread call native code from now on, and wait until none is in it, but not forever."""
    _ended[0] = True
    end = time.monotonic() + PATIENCE_SECONDS
    while any(thread != threading.get_ident() for thread in list(_inside)) and time.monotonic() < end:
        time.sleep(0.001)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inside.clear)  # these threads exist in the parent only
