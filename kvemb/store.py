"""A store: one directory, one cold database, one budget of memory, many variables.

Opening always starts from the last durable point: `live/` is remade from it with hard links, so recovery after a crash
and an ordinary opening are the same thing. Thread-safe.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from kvemb.arguments import stored_optimizer
from kvemb.catalog import Catalog
from kvemb.contracts import ColdDatabase
from kvemb.dropping import end, is_one_with
from kvemb.durability import cold_databases, inventory, journal, layout, log_entries, manifest, paths
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checking import checkpoint_findings
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import Checkpointer, PendingCheckpoint
from kvemb.durability.hotset import read_hot
from kvemb.durability.journal import Journal
from kvemb.durability.manifest import Manifest
from kvemb.durability.points import Points, reading
from kvemb.durability.recovery import Recovery, replay
from kvemb.errors import Corruption, StoreNotFound
from kvemb.interrupts import result_of
from kvemb.limits import Limits
from kvemb.options import format_bytes, parse_budget
from kvemb.replica import bring_to, common
from kvemb.rows.codec import Ordered
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.tiers.budget import Budgets

Result = TypeVar("Result")


class GraphKeys:
    """Names of a store's collections."""

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    REGULARIZATION_LOSSES = "regularization_losses"


class Store(Catalog):
    """Embedding variables that live in one directory. Made by kvemb.open and kvemb.restore.

    A context manager: inside `with`, module-level functions use it; leaving flushes and closes it. path: its directory.
    recovery: what it was opened with after a crash (a Recovery: created, rows), else None.
    """

    def __init__(
        self,
        path: Path,
        *,
        memory_budget: int | str = "1GiB",
        read_only: bool = False,
        follow: bool = False,
        durability: str = "checkpoint",
        limits: Limits = Limits(),  # noqa: B008 -- a frozen value
    ) -> None:
        super().__init__()
        self.limits = limits
        self.budgets = Budgets(parse_budget(memory_budget))
        self.budget = self.budgets.host
        self.state = StoreState(str(path), read_only=read_only)
        path = path.absolute()  # wherever the process goes
        self.path, self.follows = path, follow
        self._warm = False
        self.recovery: Recovery | None = None
        self._log: Journal | None = None
        with ExitStack() as undo:
            if read_only:
                self._view = ExitStack()
                undo.callback(lambda: self._view.close())
                self._database, self._manifest = self._view.enter_context(reading(path, self._open_database))
            else:
                self._points = Points(path, undo)
                self._manifest = self._points.current
                with inventory.naming(self._points.folder, self._manifest):
                    self._database = self._open_database(self._points.live / layout.ROWS, self._manifest)
                undo.callback(self._database.close)
            self.spiller = ThreadPoolExecutor(1, thread_name_prefix="kvemb-spill")
            self.readers = ThreadPoolExecutor(2, thread_name_prefix="kvemb-prefetch")
            if not read_only:
                self._changes = ChangeLog(self._points.live / layout.CHANGES, self._manifest.changes)
                self.recovery = self._recover()
                if durability == "write":
                    self._log = Journal(path / layout.LOG, self._manifest.point)
                    undo.callback(self._log.close)
                    self._points.begin_log()
                self._checkpointer = self._checkpointer_with(self._log)
            self._undo = undo.pop_all()

    def _open_database(self, rows: Path, described: Manifest) -> ColdDatabase:
        opened = cold_databases.to_read if self.state.read_only else cold_databases.to_write
        sizes = {"cache_bytes": self.budgets.cache_bytes, "write_buffer_bytes": self.budgets.write_buffer_bytes}
        return opened(rows, described, **sizes)

    def _checkpointer_with(self, log: Journal | None) -> Checkpointer:
        return Checkpointer(self._database, self._points, self._changes, log, self.state, self.spiller)

    def _recover(self) -> Recovery | None:
        """Bring what a crash left to a durable point; make the first one of a new store. Returns what it was."""
        points, recovery = self._points, None
        if points.crashed or points.log:
            entries = log_entries.checked(points.log, points.current.variables, begun=points.logged)
            variables, rows = replay(entries, points.current, self._database, self._changes)
            recovery = Recovery(self.path, points.current.created, rows)
            points.amend(variables)
        if points.log or points.current.point == 0:
            first = self._checkpointer_with(None)
            first.start([], None)._wait()
            first.close()
        self._manifest = points.current
        journal.drop_before(self.path / layout.LOG, points.current.point)
        if recovery is not None:
            recovery.tell()
        return recovery

    def _in_order(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call it on the thread of all writes to the cold database, after those given before; returns its result."""
        return result_of(self.spiller.submit(call, *args))

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
    def checkpoint(self, path: str | os.PathLike[str], *, block: Literal[False]) -> PendingCheckpoint: ...
    @overload
    def checkpoint(self, path: str | os.PathLike[str], *, block: bool) -> Checkpoint | PendingCheckpoint: ...

    def checkpoint(self, path: str | os.PathLike[str], *, block: bool = True) -> Checkpoint | PendingCheckpoint:
        """Write a checkpoint of every variable (but those with checkpoint=False) to a new directory.

        It holds the state of this instant, is complete or absent, and is independent of the store. Only rows that
        changed since the checkpoint before are written; files that did not are hard links. The store's own durable
        point moves with it. Returns the Checkpoint; with block=False at once a PendingCheckpoint, whose result() waits
        for it: rows go on changing meanwhile, and what it fails with is raised by result() or by the next call of
        flush(), checkpoint() or close(). One is written at a time: a second call waits for the first.

        Raises FileExistsError; ValueError for a path inside the store; ColdStoreError, Poisoned, Closed, ReadOnly.
        """
        pending = self._start(paths.local(path).absolute())
        return pending.result() if block else pending

    def apply_delta(self, checkpoint: str | os.PathLike[str]) -> None:
        """Bring this store to a later checkpoint of the store it follows, at the cost of what changed there.

        checkpoint: one that follows a checkpoint this store was restored from, made, or brought to. Rows that changed
        there since become what they are there, new variables are made, and the result is durable when this returns. A
        variable that was dropped there goes first, with rows that changed only here, durably.
        Rows that changed only here stay; variables that this store was restored without stay out. A checkpoint that
        this store holds already changes nothing. What an interrupted call left undone the next one does.

        Raises CheckpointNotFound, also when it does not follow; SchemaMismatch; Corruption, ColdStoreError, Poisoned,
        Closed, ReadOnly.
        """
        taken = Checkpoint(checkpoint)
        self.state.check_here()
        with self._lock:
            self.state.check_writable()
            self._checkpointer.wait()
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
            yield from read_hot(self._points.live / layout.HOT, self._manifest.hot[name])

    def _start(
        self, target: Path | None, *, closing: Callable[[], None] | None = None, without: Collection[str] = ()
    ) -> PendingCheckpoint:
        self.state.check_here()
        with self._lock:
            self.state.check_writable()
            self._checkpointer.wait()
            parts = [
                variable._part()
                for name, variable in self._opened.items()
                if variable.persistent and name not in without
            ]
            return self._checkpointer.start(parts, target, closing=closing, without=without)

    def refresh(self) -> bool:
        """Show the last durable point of the store that this one follows; returns whether it is a newer one.

        All variables move at once. What was hot becomes so again as it is used; a scan under way raises Closed. So does
        a variable that was dropped there, from then on, though another may have its name. Raises ValueError unless
        opened with follow=True; StoreNotFound, Corruption, ColdStoreError, Closed.
        """
        self.state.check_here()
        with self._lock:
            self.state.check_open()
            if not self.follows:
                raise ValueError(f"{self.path} was not opened with follow=True; it shows what it showed at first")
            with ExitStack() as view:
                database, described = view.enter_context(reading(self.path, self._open_database))
                if described.id == self._manifest.id:
                    return False
                if described.store != self._manifest.store:
                    raise StoreNotFound(f"another store is at {self.path} now; close this one, and open that")
                gone: list[Any] = []
                with ExitStack() as paused:
                    for variable in self._opened.values():
                        paused.enter_context(variable._storage.closing())
                    for name, variable in self._opened.items():
                        if not is_one_with(variable, described.variables.get(name)):
                            gone.append(variable)
                            continue
                        entry = described.variables[name]
                        variable._storage.show(database.attach(name, entry.schema), entry.rows, entry.step)
                        variable._operations.optimizer = stored_optimizer(entry)
                for variable in gone:
                    end(self, variable)
                self._database, self._manifest = database, described
                before, self._view = self._view, view.pop_all()
            before.close()
            return True

    def close(self, *, flush: bool = True) -> None:
        """Flush, and release the directory. A poisoned or read-only store is released as it is. Idempotent.

        flush=False: leave the last durable point as it is; what came after it, and is in no log, is lost.
        """
        if self.state.forked:
            return  # it is the other process's to close
        with self._lock:
            if self.state.closed:
                return
            # Last in, first out: wait, flush, release; each even where the one before raises.
            with ExitStack() as last:
                last.callback(self._release)
                if not self.state.read_only:
                    if flush:
                        last.callback(self._flush_if_sound)
                    self._checkpointer.wait()

    def _flush_if_sound(self) -> None:
        if self.state.cause is None:
            self._start(None, closing=self.state.close)._wait()

    def _release(self) -> None:
        if not self.state.read_only:
            self._checkpointer.close()
        with ExitStack() as paused:
            for variable in self._opened.values():
                paused.enter_context(variable._storage.closing())
            for variable in self._opened.values():
                variable._keep_bytes_cold()
            self.state.close()
        self.spiller.shutdown(wait=True)
        self.readers.shutdown(wait=True)
        self._undo.close()
        if not self.state.read_only:
            shutil.rmtree(self.path / layout.LIVE, ignore_errors=True)

    def check(self, *, deep: bool = False) -> None:
        """Raise Corruption with a line for everything that is wrong with the last durable point and the open variables.

        deep: read every file of the point. Open variables are compared row by row, the hot tier with the cold one, in
        any case; a read-only store has only the point. Raises Closed, Poisoned, ColdStoreError.
        """
        self.state.check_here()
        with self._lock:
            self.state.check_open()
            source = self.path if layout.is_checkpoint(self.path) else layout.current_point(self.path)
            found = list(checkpoint_findings(source, manifest.read(source), deep=deep))
            if not self.state.read_only:
                for name, variable in self._opened.items():
                    found += [f"variable {name!r}: {line}" for line in variable._storage.check()]
        if found:
            raise Corruption("\n".join(found))

    @property
    def stats(self) -> Stats:
        """Counts of all open variables together; of a closed store, as they were when it was closed."""
        total = Stats()
        for variable in list(self._opened.values()):
            total += variable.stats
        return total

    # The default store.

    def __enter__(self) -> Store:
        self.state.check_open()
        DEFAULTS.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        DEFAULTS.remove(self)
        self.close()

    @contextmanager
    def as_default(self) -> Iterator[Store]:
        """Make module-level functions use this store inside the block; it stays open after."""
        self.state.check_open()
        DEFAULTS.append(self)
        try:
            yield self
        finally:
            DEFAULTS.remove(self)

    def __repr__(self) -> str:
        state = "following" if self.follows else "read-only" if self.state.read_only else "open"
        if self.state.cause is not None:
            state = "poisoned"
        if self.state.gone:
            state = "closed"
        lines = [f"<kvemb.Store {self.path} {state}, budget {format_bytes(self.budget.total)}>"]
        for name in [] if self.state.gone else self._names():
            if name in self._opened:
                lines.append(f"  {self._opened[name]!r}")
            else:
                entry = self._manifest.variables[name]
                lines.append(f"  {name}: {entry.rows:,} rows of dim {entry.dim} {entry.value_dtype}, not opened yet")
        return "\n".join(lines)


# The default stores, the innermost last (kvemb.opening).
DEFAULTS: list[Store] = []
