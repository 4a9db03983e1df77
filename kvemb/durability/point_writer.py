"""One durable point under way, and the checkpoint that goes with it: a value that goes through its steps once, in
order.

1. What waits in memory on the cold side is written before, while the variables are in use
   (kvemb.durability.checkpointer).
2. take_snapshots(), some milliseconds with every variable held: dirty rows are marked (kvemb.tiers.dirty_snapshot), and
   a native checkpoint of the cold database is put in line behind the writes given before.
3. write(), behind: the marked rows are written to files in key order, which go to the cold database in use and to the
   copy. The copy becomes the store's durable point; a checkpoint is that point, linked to where the user wants it.
Until the last step has ended well, the point before it stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from kvemb.contracts import ColdDatabase, SortedFile
from kvemb.durability import cold_databases, layout, manifest
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checkpoint import Checkpoint, atomic_directory, complete
from kvemb.durability.hotset import write_hot
from kvemb.durability.journal import Journal
from kvemb.durability.manifest import Epoch, Manifest, VariableEntry
from kvemb.durability.points import Points
from kvemb.errors import ColdStoreError, KvembError
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


class TargetFailed(Exception):
    """The checkpoint could not be written where the user wants it; the store itself is sound."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class PointWriter:
    """One point on its way. number: which no point ever had. target: where a checkpoint of it shall be, if any.

    without: variables of the cold database that it does not have.
    Whatever a step fails with, snapshots are forgotten and the folder is deleted, and the point before stands.
    """

    def __init__(
        self,
        number: int,
        parts: list[Part],
        target: Path | None,
        database: ColdDatabase,
        points: Points,
        changes: ChangeLog,
        log: Journal | None,
        without: Collection[str] = (),
    ) -> None:
        self._number, self._parts, self._target, self._without = number, parts, target, list(without)
        self._database, self._points, self._changes, self._log = database, points, changes, log
        self._draft = points.draft(number)
        self._snapshots: list[tuple[Part, DirtySnapshot]] = []
        self._hot: dict[str, Ordered] = {}
        self._last = False
        self._described: Manifest
        self._base: Future[list[Epoch]]

    def take_snapshots(self, in_order: Executor, state: StoreState, closing: Callable[[], None] | None) -> None:
        """Keep the state of this instant. Raises Closed, ReadOnly, Poisoned."""
        try:
            with ExitStack() as held:
                for part in self._parts:
                    held.enter_context(part.storage.held())
                state.check_writable()
                self._last = closing is not None
                self._rotate(state)
                entries = {part.name: part.entry() for part in self._parts}
                self._described = self._points.describe(self._number, entries, self._without)
                for part in self._parts:
                    self._snapshots.append((part, part.storage.begin_snapshot()))
                    if self._target is not None:
                        self._hot[part.name] = part.storage.hot_keys()
                self._base = in_order.submit(self._copy_database)
                if closing is not None:
                    closing()
        except BaseException:
            self._abandon()
            raise

    def _rotate(self, state: StoreState) -> None:
        """Let what is logged from here on follow the point. Raises Poisoned."""
        try:
            if self._log is not None and not self._last:
                self._log.rotate()
        except ColdStoreError as error:
            state.poison(error)
            state.check_writable()

    def write(self) -> Checkpoint | None:
        """Write the state that was kept, and make it the current point. Raises ColdStoreError, TargetFailed."""
        try:
            epochs = self._base.result()
            self._write_rows()
            self._describe(epochs)
            if self._target is not None:
                self._write_checkpoint(self._target)
                self._changes.begin(self._described.id, epochs)
                manifest.write(self._described.following(self._described.id), self._draft.path)
            self._end_snapshots()
            self._points.publish(self._draft, logged=self._log is not None and not self._last)
        except BaseException:
            self._abandon()
            raise
        if self._log is not None:
            # A closed store has no writes after its point: a segment that was prepared in vain goes too.
            self._log.drop_before(self._number + 1 if self._last else self._number)
        return None if self._target is None else Checkpoint(self._target)

    def _copy_database(self) -> list[Epoch]:
        """Write the cold database as it is, in order with its writes; returns the epochs until then."""
        self._database.checkpoint(self._draft.path / layout.ROWS)
        return self._changes.seal_epoch()

    def _write_rows(self) -> None:
        """Bring the copy of the database to the state of the snapshots, without the variables that are dropped."""
        numbers = count()
        files: dict[str, list[Path]] = {}

        def new_file(part: Part) -> SortedFile:
            path = self._draft.path / f"{next(numbers):06d}.sst"
            return self._database.sorted_file(path, part.schema, part.creator)

        def ingest(part: Part, file: SortedFile) -> None:
            self._database.ingest(part.name, file.path)

        for part, snapshot in self._snapshots:
            for file in snapshot.write(partial(new_file, part), partial(ingest, part)):
                files.setdefault(part.name, []).append(file.path)
                while self._database.crowded(part.name):
                    time.sleep(PACE_SECONDS)
        cold_databases.amend(self._draft.path / layout.ROWS, drop=self._without, files=files)

    def _describe(self, epochs: list[Epoch]) -> None:
        """Write the key files, take the inventory, and write the manifest."""
        scratch = self._draft.path
        for part, snapshot in self._snapshots:
            self._changes.add(epochs, part.name, snapshot.keys())
        self._changes.link_to(scratch / layout.CHANGES, epochs)
        before = self._points.folder / layout.HOT
        sets = write_hot(scratch / layout.HOT, self._described.point, self._hot, before, self._described.hot)
        self._described = self._points.complete(scratch, replace(self._described, changes=epochs, hot=sets))

    def _write_checkpoint(self, target: Path) -> None:
        entries, point = self._described.variables, self._draft.path
        left_out = [name for name, entry in entries.items() if not entry.checkpoint]
        described = self._described.only([name for name in entries if name not in left_out])
        try:
            with atomic_directory(target) as scratch:
                layout.unpack(point, scratch, described.key_files)
                cold_databases.amend(scratch / layout.ROWS, drop=left_out)
                complete(scratch, described, point, same_names=True)
        except (KvembError, FileExistsError) as error:
            raise TargetFailed(error) from error

    def _end_snapshots(self) -> None:
        for part in self._parts:
            part.storage.end_snapshot()

    def _abandon(self) -> None:
        self._end_snapshots()
        self._draft.discard()
