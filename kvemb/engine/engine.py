"""Engine, the inside of a store: one directory, one cold database, memory budgets, and the open tables.

Opening always starts from the last durable point: it makes `live/` again with hard links to that point, so recovery
after a crash and an ordinary opening are the same. Thread-safe: `lock` guards opening, closing, snapshots, and every
attribute that is reassigned. All that this lock guards is here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from kvemb.checks.usable_memory import memory_bytes
from kvemb.contracts import ColdDatabase
from kvemb.durability import cold_databases, inventory, layout, manifest
from kvemb.durability.attachments import Attachments
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checking import checkpoint_findings
from kvemb.durability.checkpointer import Checkpointer, PendingCheckpoint
from kvemb.durability.hotset import read_hot
from kvemb.durability.manifest import Manifest
from kvemb.durability.marks.kept import KEEP_MARKS
from kvemb.durability.point_writer import VariablePart
from kvemb.durability.points import Points, held_history, reading
from kvemb.durability.recovery import Recovery, checked, replay
from kvemb.engine.table import Table
from kvemb.errors import Corruption, KvembError, UnsupportedFormat
from kvemb.journal import segment_files
from kvemb.journal.journal import Journal
from kvemb.limits import Limits
from kvemb.memory.budgets import Budgets
from kvemb.options import format_time, parse_budget, parse_device_memory
from kvemb.rows.codec import Ordered
from kvemb.store_state import StoreState
from kvemb.threads.interrupts import result_of
from kvemb.threads.locks import Event, HeldLock, Lock
from kvemb.threads.pool import Threads
from kvemb.tiers.ahead import reading_threads

Result = TypeVar("Result")
_logger = logging.getLogger("kvemb")


class Engine:
    """An open store.

    path: its directory. warm: whether opening a variable loads the rows that were hot at the durable point. recovery:
    the state recovered after a crash, or None. database: the cold rows. opened_manifest: the manifest of the point from
    which they were opened. view: the links through which a read-only store reads, and what holds the history that it
    follows; closed with the store. has_history: whether that is still the store's. tables, collections: by name.
    writer: the one thread that writes to the database. Only a writable store has points, changes, log (None unless
    every write is durable) and checkpointer. hot_rows: if warm, how many rows of each variable were hot at that point.
    closing: set as close() begins. shared: whether another process may train the store at the same time. shards: over
    how many stores the tables are spread. keeper: the thread that keeps the tables' bounds, once a table has any.
    """

    shared, shards = False, 1
    keeper: threading.Thread | None = None
    points: Points
    changes: ChangeLog
    checkpointer: Checkpointer
    view: ExitStack
    has_history: Callable[[], bool]

    def __init__(
        self,
        path: Path,
        *,
        memory_budget: int | str = "1GiB",
        device_memory: int | str | None = None,
        read_only: bool = False,
        follow: bool = False,
        durability: str = "checkpoint",
        limits: Limits = Limits(),  # noqa: B008 -- a frozen value
        warm: bool = False,
        keep_marks: int = KEEP_MARKS,
    ) -> None:
        self.limits, self.follows, self.warm = limits, follow, warm
        self.path = path.absolute()
        self.state = StoreState(str(self.path), read_only=read_only)
        bytes_here, of_devices = parse_budget(memory_budget), parse_device_memory(device_memory)
        self.budgets = Budgets(bytes_here, of_devices, check_giving=self.state.check_sound)
        self._lock = Lock()
        self.tables: dict[str, Table] = {}
        self.collections: dict[str, list[Any]] = {}
        self.recovery: Recovery | None = None
        self.log: Journal | None = None
        with ExitStack() as undo:
            if read_only:
                self.view = ExitStack()
                undo.callback(lambda: self.view.close())
                self._open_view()
            else:
                self.points = Points(self.path, undo, keep_marks)
                self.opened_manifest = self.points.current
                with inventory.naming_damaged_file(self.points.folder, self.opened_manifest):
                    self.database = self.open_database(self.points.live / layout.ROWS, self.opened_manifest)
                undo.callback(lambda: self.database.close())  # another one after a rollback
            self.writer = Threads(1, thread_name_prefix="kvemb-write", started=True)
            self.readers = reading_threads()
            if not read_only:
                self.changes = ChangeLog(self.points.live / layout.CHANGES, self.opened_manifest.changes, self.limits)
                self.recovery = self._recover()
                if durability == "write":
                    self.log = Journal(self.path / layout.LOG, self.opened_manifest.point)
                    undo.callback(self.log.close)
                    self.points.begin_log()
                self.checkpointer = self._checkpointer_with(self.log)
            self.closing, self.hot_rows = Event(), self._count_hot() if warm else {}
            self._undo = undo.pop_all()

    def _open_view(self) -> None:
        """Open the durable point for reading, and read which rows were hot, before its owner replaces the point."""
        self._hot: dict[str, list[Ordered]] = {}
        while True:
            self.has_history = self.view.enter_context(held_history(self.path))
            self.database, self.opened_manifest = self.view.enter_context(reading(self.path, self.open_database))
            if not self.warm:
                return
            point = layout.point(self.path, self.opened_manifest.point)
            place = self.path if layout.is_checkpoint(self.path) else point
            try:
                for name, files in self.opened_manifest.hot.items():
                    self._hot[name] = list(read_hot(place / layout.HOT, files))
                return
            except FileNotFoundError as error:
                if place == self.path or layout.current_point(self.path) == place:
                    raise Corruption(f"{error.filename} is missing; open the store without warm=True") from error
                self.view.close()

    def _count_hot(self) -> dict[str, int]:
        if self.state.read_only:
            return {name: sum(map(len, keys)) for name, keys in self._hot.items()}
        counts = dict.fromkeys(self.opened_manifest.hot, 0)
        for name in counts:
            with suppress(Corruption, UnsupportedFormat):  # raised when that variable is opened
                counts[name] = sum(map(len, self.hot_keys(name)))
        return counts

    def open_database(self, rows: Path, described: Manifest) -> ColdDatabase:
        """Open a database with the store's share of memory for it."""
        cache_bytes, limits = self.budgets.cache_bytes, self.limits
        if self.state.read_only:
            database = cold_databases.to_read(rows, described, cache_bytes=cache_bytes, limits=limits)
        else:
            left = max(0, memory_bytes() - self.budgets.host.total)
            database = cold_databases.to_write(rows, described, cache_bytes=cache_bytes, page_cache=left, limits=limits)
        self.budgets.opened(cached=database.read_mode != "mmap")
        return database

    def _checkpointer_with(self, log: Journal | None) -> Checkpointer:
        return Checkpointer(self.database, self.points, self.changes, log, self.state, self.writer)

    def _recover(self) -> Recovery | None:
        """Make a durable point of the state after a crash, or a new store's first one. Returns a description of it."""
        points, recovery = self.points, None
        if points.crashed or points.log:
            entries = checked(points.log, points.current.variables, begun=points.logged)
            memory = self.budgets.staging.memtables
            variables, rows = replay(entries, points.current, self.database, self.changes, memory, self.limits)
            recovery = Recovery(self.path, points.current.created, rows)
            points.set_variables(variables)
        if points.log or points.current.point == 0:
            first = self._checkpointer_with(None)
            first.start([], None).result()
            first.close()
        self.opened_manifest = points.current
        segment_files.delete_before(self.path / layout.LOG, points.current.point)
        if recovery is not None:
            recovery.log_warning()
        return recovery

    def in_order(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call a function on the thread that writes to the cold database, after earlier calls; returns its result."""
        return result_of(self.writer.submit(call, *args))

    # Variables. All but names() REQUIRE lock.

    def names(self) -> list[str]:
        """Return the names of all variables, open or not, sorted. Raises Closed."""
        self.state.check_open()
        return sorted({*self.opened_manifest.variables, *self.tables})

    def hot_keys(self, name: str) -> Iterator[Ordered]:
        """Yield the keys of the rows to load into the hot tier when a variable is opened."""
        if self.state.read_only:
            yield from self._hot.pop(name, [])
        elif self.warm and name in self.opened_manifest.hot:
            yield from read_hot(self.points.live / layout.HOT, self.opened_manifest.hot[name])

    def collect(self, collection: str, item: Any) -> None:
        """Add an item to a collection."""
        self.collections.setdefault(collection, []).append(item)

    def discard(self, table: Table) -> None:
        """Remove a table from the open tables, and its variable from every collection."""
        self.tables.pop(table.name, None)
        for name, collection in self.collections.items():
            # By identity, because a regularizer's result may compare elementwise.
            self.collections[name] = [each for each in collection if each is not table.variable]

    @property
    def lock(self) -> HeldLock:
        """A block with the store's lock, which calls on the store as a whole take. Reentrant."""
        return HeldLock(self._lock)

    # Durable points.

    @property
    def current_manifest(self) -> Manifest:
        """The manifest of the last durable point, or of the point that a reader reads."""
        return self.opened_manifest if self.state.read_only else self.points.current

    @contextmanager
    def no_point_in_progress(self) -> Iterator[None]:
        """Hold the lock of a writable store when no point is being written. Waits for it without the lock, so that
        signal handlers run meanwhile. Raises the error of the point, or of an earlier one, that no caller got yet.
        """
        while True:
            self.state.check_writable()
            self.checkpointer.wait()
            with self.lock:
                self.state.check_writable()
                if self.checkpointer.is_idle:
                    yield
                    return

    def start(
        self, target: Path | None = None, *, closing: Callable[[], None] | None = None,
        without: Collection[str] = (), attached: Attachments | None = None, completed: Callable[[], None] | None = None,
    ) -> PendingCheckpoint[Any]:  # fmt: skip
        """Begin to write a durable point with these attachments, and a checkpoint at target; see Checkpointer.start."""
        self.state.check_here()
        with self.no_point_in_progress():
            return self.checkpointer.start(
                self.parts(without), target, closing=closing, without=without, attached=attached, completed=completed
            )

    def parts(self, without: Collection[str] = ()) -> list[VariablePart]:
        """Return each variable's part of a durable point. REQUIRES: lock."""
        return [table.part() for name, table in self.tables.items() if table.persistent and name not in without]

    def flush(self) -> None:
        """Make a durable point of the current state, unless the last one has it. Raises Poisoned, Closed, ReadOnly."""
        self.state.check_here()
        with self.no_point_in_progress():
            writing = self.checkpointer.flush(self.parts())
        if writing is not None:
            writing.result()

    def findings(self, *, deep: bool) -> list[str]:
        """Return a line for each fault in the last durable point and the open tables."""
        self.state.check_open()
        found = self._findings_of_point(deep)
        if not self.state.read_only:
            for name, table in list(self.tables.items()):
                found += [f"variable {name!r}: {line}" for line in table.storage.check()]
        return found

    def _findings_of_point(self, deep: bool) -> list[str]:
        while True:
            source = self._last_point()
            try:
                found = list(checkpoint_findings(source, manifest.read(source), deep=deep))
            except (KvembError, FileNotFoundError):
                if source == self._last_point():
                    raise
                continue
            # A point is deleted when the next one is complete; this store's thread or its owner may have made one
            # meanwhile.
            if not found or source == self._last_point():
                return found

    def _last_point(self) -> Path:
        return self.path if layout.is_checkpoint(self.path) else layout.current_point(self.path)

    # The end.

    def close(self, *, flush: bool = True) -> None:
        """Release the directory, after a last durable point if one can be made. Idempotent."""
        if self.state.forked:
            return  # only the process that opened it closes it
        with self.lock:
            if self.state.closed:
                return
            self.closing.set()
            if self.keeper is not None:
                self.keeper.join()  # it ends with the batch of rows in progress, and takes no lock of the engine
            # Last in, first out: wait, flush, release. Each runs even if the previous one raises.
            with ExitStack() as last:
                last.callback(self.release)
                if not self.state.read_only:
                    if flush:
                        last.callback(self._flush_if_sound)
                    self.checkpointer.wait()

    def _flush_if_sound(self) -> None:
        if self.state.cause is None:
            self.start(closing=self.state.close).result()
        else:
            _logger.warning(
                "the store %s is closed without a new durable point, because a write failed: %s; what changed after "
                "the last one, of %s,%s is lost",
                self.path,
                self.state.cause,
                format_time(self.points.current.created),
                " and is not in the log," if self.log is not None else "",
            )

    def release(self) -> None:
        """Close the store as it is: changes since the last durable point that are in no log are lost."""
        if not self.state.read_only:
            self.checkpointer.close()
        with ExitStack() as paused:
            for table in self.tables.values():
                paused.enter_context(table.storage.closing())
            for table in self.tables.values():
                table.keep_bytes_cold()
            self.state.close()
        self.writer.shutdown(wait=True)
        self.readers.shutdown(wait=True)
        if not self.state.read_only:
            self.points.closed = True
        self._undo.close()
