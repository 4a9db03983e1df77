"""Writing durable points and checkpoints, one at a time, in the background, while variables go on changing.

kvemb.durability.point_writer describes the steps. REQUIRES: the store's lock for every method but
wait().
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvemb.checks.seconds import as_seconds
from kvemb.contracts import ColdDatabase
from kvemb.durability import layout
from kvemb.durability.attachments import Attachments
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.point_writer import PointWriter, TargetFailed, VariablePart
from kvemb.durability.points import Points
from kvemb.errors import Closed, ColdStoreError, KvembError
from kvemb.handle import Handle, inside
from kvemb.journal.journal import Journal
from kvemb.store_state import StoreState
from kvemb.threads.interrupts import is_done, result_of, uninterrupted
from kvemb.threads.pool import Threads

Written = TypeVar("Written")


class PendingCheckpoint(Handle[Future[Written]], Generic[Written]):
    """Stand for a checkpoint that is being written.

    ``checkpoint(block=False)`` returns one. The checkpoint is a ``kvemb.Checkpoint``, or of a cluster a
    ``kvemb.cluster.Checkpoint``.

    Attributes:
        reported: Whether its failure was raised to a caller.
    """

    def __init__(self, future: Future[Written]) -> None:
        super().__init__(future)
        self.reported: bool = False
        self._process = os.getpid()

    def done(self) -> bool:
        """Say whether the checkpoint is complete or has failed.

        Returns:
            True if ``result()`` would not wait.

        Raises:
            Closed: This process was forked before the checkpoint was complete.
        """
        done = is_done(self._inside)
        if not done and self._process != os.getpid():
            raise Closed(
                f"the checkpoint is being written by process {self._process}, from which this one was forked; wait for "
                "it there"
            )
        return done

    def result(self, timeout: float | None = None) -> Written:
        """Wait until the checkpoint is complete, and return it.

        If writing it failed, its error is raised: those of ``Store.checkpoint``.

        Args:
            timeout: The most seconds to wait. None: no limit.

        Returns:
            The checkpoint.

        Raises:
            TimeoutError: It is not complete after ``timeout`` seconds.
            ColdStoreError: It could not be written. The store can still be used.
            Poisoned: A write of the store's own files failed.
            Closed: This process was forked before the checkpoint was complete.

        Example:
            >>> pending = store.checkpoint("backup", block=False)
            >>> users.upsert([4], [[4, 4]])  # not in the checkpoint
            >>> pending.result().variables["users"].rows
            3
        """
        seconds = None if timeout is None else as_seconds(timeout, "timeout", least=0)
        self.done()
        try:
            return result_of(self._inside, seconds)
        except Exception:
            self.reported = is_done(self._inside)
            raise

    def __repr__(self) -> str:
        if not is_done(self._inside):
            return "<kvemb.PendingCheckpoint being written>"
        if (error := self._inside.exception()) is not None:
            return f"<kvemb.PendingCheckpoint failed: {error}>"
        return f"<kvemb.PendingCheckpoint complete: {self._inside.result()!r}>"


class Checkpointer:
    """Writes one point at a time. in_order: the one thread that writes to the open cold database."""

    def __init__(
        self,
        database: ColdDatabase,
        points: Points,
        changes: ChangeLog,
        log: Journal | None,
        state: StoreState,
        in_order: Executor,
    ) -> None:
        self._database, self._points, self._changes, self._log = database, points, changes, log
        self._state, self._in_order = state, in_order
        self._background = Threads(1, thread_name_prefix="kvemb-checkpoint", started=True)
        # Points whose error no caller has had yet, and then the last point.
        self._begun: list[PendingCheckpoint[Any]] = []
        self._attaching = 0  # the thread that calls such functions

    def wait(self) -> None:
        """Wait for the point being written. Raises its error, or that of an earlier one, unless a caller has had it."""
        for begun in list(self._begun):
            if not begun.reported:
                begun.result()

    def wait_for_end(self) -> None:
        """Wait for the point being written. A failure that has poisoned the store is not reported to a later call."""
        for begun in self._begun:
            try:
                result_of(inside(begun))
            except Exception as error:
                poisoned = self._state.cause is not None and self._state.cause in (error, error.__cause__)
                begun.reported = begun.reported or poisoned

    @property
    def is_idle(self) -> bool:
        """Whether no point is being written."""
        return all(is_done(inside(begun)) for begun in self._begun)

    def write_to(self, database: ColdDatabase) -> None:
        """Write points of this open database from now on. REQUIRES: is_idle."""
        self._database = database

    def flush(self, parts: list[VariablePart], keep: Callable[[], None] | None = None) -> PendingCheckpoint[Any] | None:
        """Start to write a durable point, unless the current one already has this state: then return None.

        Whatever a point holds must be compared here. Variables are looked at one after another: one that has not
        changed by now had not changed before. REQUIRES and raises as start().
        """
        self._check_not_attaching()
        self._state.check_writable()
        return None if self.is_flushed(parts) else self.start(parts, None, keep=keep)

    def is_flushed(self, parts: list[VariablePart]) -> bool:
        """Whether the current durable point has this state. REQUIRES: is_idle."""
        entries = self._points.current.variables
        unchanged = all(entries.get(part.name) == part.entry() and part.is_clean() for part in parts)
        return unchanged and not self._points.adopted_counters and self._changes.is_as_of(self._points.current.changes)

    @property
    def attaches_here(self) -> bool:
        """Whether this thread calls functions that write files of a point."""
        return self._attaching == threading.get_ident()

    def start(
        self,
        parts: list[VariablePart],
        target: Path | None,
        *,
        closing: Callable[[], None] | None = None,
        without: Collection[str] = (),
        attached: Attachments | None = None,
        completed: Callable[[], None] | None = None,
        keep: Callable[[], None] | None = None,
    ) -> PendingCheckpoint[Any]:
        """Take a snapshot, and start to write a durable point and, if target is given, a checkpoint there.

        closing: given if this is the store's last point; called when the snapshot is taken, under all variables' locks.
        without: variables of the cold database that the point leaves out, which must not change; none with a target.
        attached: files and values to save in the point and the checkpoint; the files are written first.
        completed: called when the checkpoint is complete; its KvembErrors are ignored. Returns a stand-in for the
        checkpoint, without a target for None.
        keep: called once it is the store's point; see PointWriter.
        REQUIRES: is_idle. Raises FileExistsError, ValueError, ColdStoreError, Poisoned, Closed; what a writer raises.
        """
        self._check_not_attaching()
        if target is not None:
            if os.path.lexists(target):
                raise FileExistsError(f"{target} exists; name a new directory for the checkpoint")
            layout.check_outside_stores(target, "checkpoint")
        try:
            number = self._points.next_number()
            if self._log is not None and closing is None:
                self._log.prepare(number)  # the segment must exist before CURRENT refers to it
        except ColdStoreError as error:
            self._state.poison(error, intact=True)
            self._state.check_sound()
        self._state.check_may_flush()
        made = self._database, self._points, self._changes, self._log, without, attached, keep
        writer = PointWriter(number, parts, target, *made)
        self._attaching = threading.get_ident()
        try:
            writer.write_attached()
        finally:
            self._attaching = 0
        # Signal handlers are deferred: otherwise snapshots might never be ended.
        with uninterrupted():
            writer.take_snapshots(self._in_order, self._state, closing)
            started = PendingCheckpoint(self._background.submit(self._write, writer, completed))
            unknown = [each for each in self._begun if not each.reported and inside(each).exception() is not None]
            self._begun = [*unknown, started]
        return started

    def _write(self, writer: PointWriter, completed: Callable[[], None] | None) -> Checkpoint | None:
        try:
            checkpoint = writer.write()
        except TargetFailed as failed:
            raise failed.error from failed.error.__cause__
        except BaseException as error:
            # Some of its rows may be in the open database, clean, but in no point.
            self._state.poison(error, intact=isinstance(error, Exception) and writer.undone)
            if isinstance(error, ColdStoreError):
                self._state.check_sound()
            raise
        if completed is not None:
            with suppress(KvembError):
                completed()
        return checkpoint

    def _check_not_attaching(self) -> None:
        if self._attaching:
            raise ValueError(
                "a function that writes a file of a checkpoint must not flush, checkpoint or close the store"
            )

    def close(self) -> None:
        """Wait for the point being written."""
        self._background.shutdown(wait=True)
