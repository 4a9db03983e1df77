"""A store: one directory, one cold database, one budget of memory, many variables.

Opening always starts from the last durable point: `live/` is remade from it with hard links, so recovery after a crash
and an ordinary opening are the same thing. Thread-safe.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from kvemb import layout, registry
from kvemb.budget import Budget
from kvemb.changes import ChangeLog
from kvemb.checkpoint import Checkpoint, install
from kvemb.checkpointer import Checkpointer, PendingCheckpoint
from kvemb.errors import KvembError, StoreNotFound
from kvemb.health import Health
from kvemb.keyfile import Ordered, read_keys
from kvemb.manifest import VariableEntry
from kvemb.options import RocksDBCreator, format_bytes, parse_budget
from kvemb.points import Points, reading
from kvemb.replica import bring_to, common
from kvemb.stats import Stats

if TYPE_CHECKING:
    from kvemb.variable import Variable


class GraphKeys:
    """Names of a store's collections."""

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    REGULARIZATION_LOSSES = "regularization_losses"


class Store:
    """Embedding variables that live in one directory. Made by kvemb.open and kvemb.restore.

    A context manager: inside `with`, module-level functions use it; leaving flushes and closes it.
    """

    def __init__(self, path: Path, *, memory_budget: int | str = "1GiB", read_only: bool = False) -> None:
        self.path = path
        self.budget = Budget(parse_budget(memory_budget))
        self.health = Health(str(path), read_only=read_only)
        self._lock = threading.RLock()
        self._opened: dict[str, Variable] = {}
        self._collections: dict[str, list[Any]] = {}
        self._warm = False
        with ExitStack() as undo:
            if read_only:
                rows, self._manifest = undo.enter_context(reading(path))
            else:
                self._points = Points(path, undo)
                rows, self._manifest = self._points.live / layout.ROWS, self._points.current
            self._database = registry.cold_backend("rocks")(
                rows,
                {name: RocksDBCreator.from_json(entry.creator) for name, entry in self._manifest.variables.items()},
                cache_bytes=self.budget.cache_bytes,
                write_buffer_bytes=self.budget.write_buffer_bytes,
                read_only=read_only,
            )
            undo.callback(self._database.close)
            self.spiller = ThreadPoolExecutor(1, thread_name_prefix="kvemb-spill")
            self.readers = ThreadPoolExecutor(2, thread_name_prefix="kvemb-prefetch")
            if not read_only:
                self._changes = ChangeLog(self._points.live / layout.CHANGES, self._manifest.changes)
                self._checkpointer = Checkpointer(
                    self._database, self._points, self._changes, self.health, self.spiller
                )
                if not layout.is_store(path):
                    self._checkpointer.start([], None)
                    self._checkpointer.settle()
            self._undo = undo.pop_all()

    # Variables.

    def get_variable(self, name: str, *args: Any, **kwargs: Any) -> Variable:
        """Return the variable of this name, opening or creating it: kvemb.get_variable with store=self."""
        from kvemb.scope import get_variable

        return get_variable(name, *args, **kwargs, store=self)

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The store's variables by name. Getting one that is not open yet opens it, as it is stored."""
        return _Variables(self)

    def _open_stored(self, name: str, entry: VariableEntry) -> Variable:
        from kvemb.variable import open_stored

        return open_stored(self, name, entry)

    def get_collection(self, name: str) -> list[Any]:
        """Return what was added under a GraphKeys name, in order, a copy."""
        return list(self._collections.get(name, []))

    def _add_to_collection(self, name: str, value: Any) -> None:
        self._collections.setdefault(name, []).append(value)

    def _names(self) -> list[str]:
        return sorted({*self._manifest.variables, *self._opened})

    def _in_order(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call it on the thread of all writes to the cold database, after those given before; returns its result."""
        return self.spiller.submit(call, *args).result()

    # Durability.

    def flush(self) -> None:
        """Write every dirty row and make a durable point: what a crash from now on goes back to.

        It holds the state of the instant of this call; other threads go on meanwhile. Raises Poisoned when the disk
        does not take it, and what a checkpoint with block=False failed with; Closed, ReadOnly.
        """
        self._start(None)._wait()

    @overload
    def checkpoint(self, path: str | os.PathLike[str], *, block: Literal[True] = True) -> Checkpoint: ...
    @overload
    def checkpoint(self, path: str | os.PathLike[str], *, block: bool) -> Checkpoint | PendingCheckpoint: ...

    def checkpoint(self, path: str | os.PathLike[str], *, block: bool = True) -> Checkpoint | PendingCheckpoint:
        """Write a checkpoint of every variable (but those with checkpoint=False) to a new directory.

        It holds the state of this instant, is complete or absent, and is independent of the store. Only rows that
        changed since the checkpoint before are written; files that did not are hard links. The store's own durable
        point moves with it. Returns the Checkpoint; with block=False at once a PendingCheckpoint, whose result() waits
        for it: rows go on changing meanwhile, and what it fails with is raised by result() or by the next call of
        flush(), checkpoint() or close(). One is written at a time: a second call waits for the first.

        Raises FileExistsError, ColdStoreError, Poisoned, Closed, ReadOnly.
        """
        pending = self._start(Path(path))
        return pending.result() if block else pending

    def apply_delta(self, checkpoint: str | os.PathLike[str]) -> None:
        """Bring this store to a later checkpoint of the store it follows, at the cost of what changed there.

        checkpoint: one that follows a checkpoint this store was restored from, made, or brought to. Rows that changed
        there since become what they are there, new variables are made, and the result is durable when this returns;
        rows that changed only here stay. A checkpoint that this store holds already changes nothing. What an
        interrupted call left undone the next one does.

        Raises CheckpointNotFound, also when it does not follow; SchemaMismatch; Corruption, ColdStoreError, Poisoned,
        Closed, ReadOnly.
        """
        taken = Checkpoint(checkpoint)
        with self._lock:
            self.health.check_writable()
            self._checkpointer.settle()
            ancestors = self._changes.ancestors()
            if taken.id in ancestors:
                return
            position = common(taken, ancestors)
            bring_to(self, taken, position)
            self._changes.adopt(taken.id, position)
            self._points.adopt(taken.id)
            self._start(None)._wait()

    def _hot_keys(self, name: str) -> Iterator[Ordered]:
        """The keys of a variable that shall be hot when it is opened."""
        if self._warm and name in self._manifest.hot:
            yield from read_keys(self._points.live / layout.HOT / self._manifest.hot[name])

    def _start(self, target: Path | None, *, last: bool = False) -> PendingCheckpoint:
        with self._lock:
            self.health.check_writable()
            self._checkpointer.settle()
            parts = [variable._part() for variable in self._opened.values() if variable.persistent]
            return self._checkpointer.start(parts, target, last=last)

    def close(self) -> None:
        """Flush, and release the directory. A poisoned or read-only store is released as it is. Idempotent."""
        with self._lock:
            if self.health.closed:
                return
            with ExitStack() as last:
                last.callback(self._release)
                if not self.health.read_only:
                    last.callback(self._flush_if_sound)
                    self._checkpointer.settle()

    def _flush_if_sound(self) -> None:
        if self.health.cause is None:
            self._start(None, last=True)._wait()

    def _release(self) -> None:
        if not self.health.read_only:
            self._checkpointer.close()
        with ExitStack() as paused:
            for variable in self._opened.values():
                paused.enter_context(variable._tiered.closing())
            self.health.closed = True
        self.spiller.shutdown(wait=True)
        self.readers.shutdown(wait=True)
        self._undo.close()
        if not self.health.read_only:
            shutil.rmtree(self.path / layout.LIVE, ignore_errors=True)

    @property
    def stats(self) -> Stats:
        """Counts of all open variables together."""
        total = Stats()
        for variable in list(self._opened.values()):
            total += variable.stats
        return total

    # The default store.

    def __enter__(self) -> Store:
        self.health.check_open()
        _defaults.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _defaults.remove(self)
        self.close()

    @contextmanager
    def as_default(self) -> Iterator[Store]:
        """Make module-level functions use this store inside the block; it stays open after."""
        self.health.check_open()
        _defaults.append(self)
        try:
            yield self
        finally:
            _defaults.remove(self)

    def __repr__(self) -> str:
        state = "closed" if self.health.closed else "read-only" if self.health.read_only else "open"
        if self.health.cause is not None:
            state = "poisoned"
        lines = [f"<kvemb.Store {self.path} {state}, budget {format_bytes(self.budget.total)}>"]
        for name in [] if self.health.closed else self._names():
            if name in self._opened:
                lines.append(f"  {self._opened[name]!r}")
            else:
                entry = self._manifest.variables[name]
                lines.append(f"  {name}: {entry.rows:,} rows of dim {entry.dim} {entry.value_dtype}, not opened yet")
        return "\n".join(lines)


class _Variables(Mapping[str, "Variable"]):
    """A view of a store's variables; opens one when it is asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getitem__(self, name: str) -> Variable:
        with self._store._lock:
            if name in self._store._opened:
                return self._store._opened[name]
            return self._store._open_stored(name, self._store._manifest.variables[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._store._names())

    def __len__(self) -> int:
        return len(self._store._names())

    def __repr__(self) -> str:
        return f"<variables {', '.join(self)}>"


def open(path: str | os.PathLike[str], *, memory_budget: int | str = "1GiB", read_only: bool = False) -> Store:
    """Open the store at path, making it if the directory is missing or empty.

    memory_budget: bytes, or text such as "512MiB", for everything the store keeps in memory.
    read_only: open a store's last durable point, or a checkpoint in place; nothing changes, uses are not counted.
    Raises StoreNotFound, Locked, Corruption, UnsupportedFormat, ColdStoreError; ValueError or TypeError for arguments.
    """
    return Store(Path(path), memory_budget=memory_budget, read_only=read_only)


def restore(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    memory_budget: int | str = "1GiB",
    variables: Collection[str] | None = None,
    warm: bool = False,
) -> Store:
    """Make a new store at path from a checkpoint, and open it. The checkpoint stays as it is, whatever the store does.

    variables: take only these. warm: what was hot when the checkpoint was made becomes so again, each variable when it
    is opened; otherwise rows become hot as they are used. Devices may be others than they were.

    Costs hard links on one filesystem, copies across two. Raises CheckpointNotFound, FileExistsError, KeyError for a
    name, and what open does.
    """
    parse_budget(memory_budget)
    install(Path(checkpoint), Path(path), variables)
    try:
        store = open(path, memory_budget=memory_budget)
        store._warm = bool(warm)
        return store
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


_defaults: list[Store] = []


def default_store() -> Store:
    """Return the innermost default store; with none, a temporary one, deleted at exit, of which a warning tells
    once.
    """
    if _defaults:
        return _defaults[-1]
    import atexit
    import tempfile

    directory = tempfile.mkdtemp(prefix="kvemb-")
    warnings.warn(
        f"no default store is set: using a temporary one in {directory}, deleted at exit; "
        "use `with kvemb.open(path):` to keep rows",
        stacklevel=3,
    )
    store = Store(Path(directory))
    _defaults.append(store)

    def discard() -> None:
        with suppress(KvembError):
            store._release()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(discard)
    return store


__all__ = ["Store", "StoreNotFound", "default_store", "open", "restore"]
