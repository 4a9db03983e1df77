"""From one durable point to the next: cuts every variable at one instant, and writes that state out behind.

The order of things, for flush() and checkpoint() alike:
1. What waits in memory on the cold side is written, while the variables are in use.
2. The cut, in milliseconds, with every variable held: dirty rows are marked (kvemb.tiers.dirty_snapshot), and a native
   checkpoint of the cold database is put in line behind the writes given before.
3. Behind: the marked rows are written to files in key order, which go to the cold database in use and to the copy.
4. The copy becomes the store's durable point; a checkpoint is that point, linked to where the user wants it.
Until the last step has ended well, the point before it stands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from kvemb.contracts import ColdDatabase, SortedFile
from kvemb.durability import layout, manifest
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checkpoint import Checkpoint, atomic_directory, complete
from kvemb.durability.hotset import write_hot
from kvemb.durability.journal import Journal
from kvemb.durability.manifest import Epoch, Manifest, VariableEntry
from kvemb.durability.points import Points
from kvemb.errors import ColdStoreError, KvembError
from kvemb.interrupts import result_of
from kvemb.rows.codec import Ordered
from kvemb.rows.schema import Schema
from kvemb.store_state import StoreState
from kvemb.tiers.dirty_snapshot import DirtySnapshot
from kvemb.tiers.storage import TieredStorage

# Between two looks at a cold database that is crowded: a checkpoint waits then, so that those who spill need not.
PACE_SECONDS = 0.01


@dataclass(frozen=True)
class Part:
    """What a checkpoint needs of a variable. entry: describes it, as it is at the call."""

    name: str
    schema: Schema
    creator: Any
    storage: TieredStorage
    entry: Callable[[], VariableEntry]


class PendingCheckpoint:
    """A checkpoint that is being written. told: whether somebody was told that it failed."""

    def __init__(self, future: Future[Checkpoint | None]) -> None:
        self._future = future
        self.told = False

    def done(self) -> bool:
        """Whether it is complete, or has failed."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Checkpoint:
        """Wait until it is complete, and return it. Raises what it failed with; TimeoutError after timeout seconds."""
        checkpoint = self._wait(timeout)
        assert checkpoint is not None
        return checkpoint

    def __repr__(self) -> str:
        if not self.done():
            return "<kvemb.PendingCheckpoint being written>"
        if (error := self._future.exception()) is not None:
            return f"<kvemb.PendingCheckpoint failed: {error}>"
        done = self._future.result()
        return f"<kvemb.PendingCheckpoint complete: {done and done.path}>"

    def _wait(self, timeout: float | None = None) -> Checkpoint | None:
        try:
            return result_of(self._future, timeout)
        except Exception:
            self.told = self.done()
            raise


class Checkpointer:
    """Writes one point at a time. in_order: the thread of all writes to the cold database in use."""

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
        self._behind = ThreadPoolExecutor(1, thread_name_prefix="kvemb-checkpoint")
        self._last: PendingCheckpoint | None = None

    def settle(self) -> None:
        """Wait for the one under way. Raises its error, unless somebody was told."""
        last, self._last = self._last, None
        if last is not None and not last.told:
            last._wait()

    def start(self, parts: list[Part], target: Path | None, *, last: bool = False) -> PendingCheckpoint:
        """Cut, and start to write a point and, if there is a target, a checkpoint there.

        last: the store is closed from the cut on, so that nothing is acknowledged that it does not hold.
        REQUIRES: settled. Raises FileExistsError, ValueError, ColdStoreError, Poisoned, Closed.
        """
        if target is not None:
            if os.path.lexists(target):
                raise FileExistsError(f"{target} exists; name a new directory for the checkpoint")
            layout.check_outside_stores(target, "checkpoint")
        try:
            for part in parts:
                part.storage.ease()
            self._database.flush()
            number = self._points.next_number()
            if self._log is not None and not last:
                self._log.prepare(number)
        except ColdStoreError as error:
            self._state.poison(error)
        self._state.check_writable()
        cuts: list[tuple[Part, DirtySnapshot]] = []
        hot: dict[str, Ordered] = {}
        with ExitStack() as undo:
            scratch = undo.enter_context(self._points.advancing(number))
            with ExitStack() as held:
                for part in parts:
                    held.enter_context(part.storage.held())
                self._state.check_writable()
                described = self._points.describe(number, {part.name: part.entry() for part in parts})
                for part in parts:
                    undo.callback(part.storage.end_cut)
                    cuts.append((part, part.storage.begin_cut()))
                    if target is not None:
                        hot[part.name] = part.storage.hot_keys()
                base = self._in_order.submit(self._base, scratch / layout.ROWS)
                if self._log is not None and not last:
                    self._log.rotate()
                self._state.closed = last
            writing = self._behind.submit(self._write, undo.pop_all(), base, cuts, hot, described, scratch, target)
        self._last = PendingCheckpoint(writing)
        return self._last

    def _base(self, rows: Path) -> list[Epoch]:
        """Write the cold database as it is, in order with its writes; returns the epochs until then."""
        self._database.checkpoint(rows)
        return self._changes.settle()

    def _write(
        self,
        whole: ExitStack,
        base: Future[list[Epoch]],
        cuts: list[tuple[Part, DirtySnapshot]],
        hot: dict[str, Ordered],
        described: Manifest,
        scratch: Path,
        target: Path | None,
    ) -> Checkpoint | None:
        try:
            with whole:
                epochs = base.result()
                self._write_rows(cuts, scratch)
                for part, cut in cuts:
                    self._changes.add(epochs, part.name, cut.keys())
                self._changes.link_to(scratch / layout.CHANGES, epochs)
                before = self._points.folder / layout.HOT
                sets = write_hot(scratch / layout.HOT, described.point, hot, before, described.hot)
                described = self._points.complete(scratch, replace(described, changes=epochs, hot=sets))
                if target is not None:
                    self._write_checkpoint(described, scratch, target)
                    self._changes.begin(described.id, epochs)
                    manifest.write(described.following(described.id), scratch)
            if self._log is not None:
                # A closed store has no writes after its point: a segment that was prepared in vain goes too.
                self._log.drop_before(described.point + 1 if self._state.closed else described.point)
        except _TargetFailed as failed:
            raise failed.error from failed.error.__cause__
        except ColdStoreError as error:
            self._state.poison(error)
            self._state.check_sound()
        return None if target is None else Checkpoint(target)

    def _write_rows(self, cuts: list[tuple[Part, DirtySnapshot]], scratch: Path) -> None:
        """Bring scratch/rows to the state of the cut."""
        numbers = count()
        files: dict[str, list[Path]] = {}

        def new_file(part: Part) -> SortedFile:
            path = scratch / f"{next(numbers):06d}.sst"
            return self._database.sorted_file(path, part.schema, part.creator)

        for part, cut in cuts:
            ingest = partial(self._ingest, part.name)
            for file in cut.write(partial(new_file, part), ingest):
                files.setdefault(part.name, []).append(file.path)
                while self._database.crowded(part.name):
                    time.sleep(PACE_SECONDS)
        self._database.amend(scratch / layout.ROWS, [], files)

    def _ingest(self, name: str, file: SortedFile) -> None:
        self._database.ingest(name, file.path)

    def _write_checkpoint(self, described: Manifest, point: Path, target: Path) -> None:
        left_out = [name for name, entry in described.variables.items() if not entry.checkpoint]
        try:
            with atomic_directory(target) as scratch:
                described = described.only([name for name, entry in described.variables.items() if entry.checkpoint])
                layout.unpack(point, scratch, described.key_files)
                self._database.amend(scratch / layout.ROWS, left_out, {})
                complete(scratch, described, point, same_names=True)
        except (KvembError, FileExistsError) as error:
            raise _TargetFailed(error) from error

    def close(self) -> None:
        """Wait for the one under way."""
        self._behind.shutdown(wait=True)


class _TargetFailed(Exception):
    """The checkpoint could not be written where the user wants it; the store itself is sound."""

    def __init__(self, error: Exception) -> None:
        self.error = error
