"""Pickling of variables and stores: as path and name, which another process opens for reading.

An unpickled object reads the store's last durable point and follows the store with refresh(), like kvemb.open(path,
follow=True); it never writes. A process opens each store once, however many of its variables are unpickled, and keeps
it open until the process ends. copy.copy and deepcopy return the object itself, because its rows exist once.
Thread-safe.
"""

from __future__ import annotations

import copyreg
import threading
from pathlib import Path
from typing import Any

from kvemb.durability import layout
from kvemb.handle import inside
from kvemb.opening import open
from kvemb.store import Store
from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable

_lock = threading.Lock()
_arrived: dict[Path, Store] = {}


def arrived_store(path: Path) -> Store:
    """Return the store at path, opened for all objects that are unpickled in this process. Raises what open does."""
    with uninterrupted(), _lock:
        if path not in _arrived or _arrived[path].state.gone:
            whole = layout.is_checkpoint(path)
            _arrived[path] = open(path, read_only=whole, follow=not whole)
        return _arrived[path]


def arrived_variable(path: Path, name: str) -> Variable:
    """Return a variable of arrived_store(path). Raises KeyError if the durable point has no such variable."""
    store = arrived_store(path)
    if name not in store.variables and store.follows:
        store.refresh()
    return store.variables[name]


def _reduce_store(store: Store) -> tuple[Any, ...]:
    store.state.check_open()
    return arrived_store, (store.path,)


def _reduce_variable(variable: Variable) -> tuple[Any, ...]:
    inside(variable).storage.state.check_open()
    store, name = variable.resource_handle
    if not variable.persistent:
        raise TypeError(
            f"variable {name!r} cannot be pickled: its rows are only in this process's memory; use RocksDBCreator"
        )
    if not store.state.read_only and name not in inside(store).points.current.variables:
        raise ValueError(f"variable {name!r} cannot be pickled before {store.path} is flushed; call store.flush()")
    return arrived_variable, (store.path, name)


copyreg.pickle(Store, _reduce_store)
copyreg.pickle(Variable, _reduce_variable)
