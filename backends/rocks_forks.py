"""RocksDB in a process that was forked from one in which it had run, and which lacks RocksDB's threads.

Closing a database there would wait for these threads, or write to the files of the process that opened it. So what was
open stays open, unused, until the process ends. RocksDB's exit handler, which joins the threads, would then crash, and
is not called. A database that is opened to write would wait forever, and is refused; one that is opened to read needs
no thread.
"""

from __future__ import annotations

import ctypes
import os
from weakref import WeakSet

from kvemb.errors import BackendUnavailable

# RocksDB's objects of this process, and of those that it was forked from.
_alive: WeakSet[object] = WeakSet()
_first: list[int] = []  # the process whose threads RocksDB has
_c = ctypes.CDLL(None)


def check_threads() -> None:
    """Raise BackendUnavailable in a process that lacks RocksDB's threads."""
    if _first and _first[0] != os.getpid():
        raise BackendUnavailable(
            f"no store can be written in process {os.getpid()}: it was forked from process {_first[0]} after that one "
            "had opened a store, and RocksDB's threads do not survive a fork; start it by spawn, or fork it before a "
            "store is opened; it can open stores with follow=True"
        )


def keep_in_forks(owner: object) -> None:
    """Never delete an object that owns handles of RocksDB in processes that are forked from now on."""
    if not _first:
        _first.append(os.getpid())
    _alive.add(owner)


def _prepare_child() -> None:
    for owner in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))  # a list of them would be deleted when Python ends
    if _first and hasattr(_c, "on_exit"):  # in glibc
        # Called in reverse order when Python has ended, before RocksDB's handler: fflush(NULL), _exit(status, NULL).
        _c.on_exit(_c["_exit"], None)
        _c["__cxa_atexit"](_c.fflush, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_prepare_child)
