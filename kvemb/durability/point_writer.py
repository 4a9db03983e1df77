"""Writing one durable point, and the checkpoint made of it, in three steps.

1. write_attached(): the caller's files.
2. take_snapshots(), some tens of milliseconds under all variables' locks: dirty rows are marked (kvemb.tiers.snapshot),
   and a native checkpoint of the cold database is queued after the writes of all rows in memtables.
3. write(), in the background: the marked rows are written to files in key order, which are ingested into the open cold
   database and into its copy. A checkpoint is linked to the copy, complete but for its name. The copy becomes the
   store's durable point; then the checkpoint gets its name. So the store follows every checkpoint that exists.
The previous point stays current until the copy replaces it. All steps are here, in their order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from kvemb.contracts import ColdDatabase, SortedFile
from kvemb.durability import cold_databases, layout, manifest, paths
from kvemb.durability.admission_counters.point_files import write_counter_files
from kvemb.durability.attachments import Attachments
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checkpoint import Checkpoint, DirectoryDraft, complete, written
from kvemb.durability.epochs import dropped_variables
from kvemb.durability.hotset import write_hot
from kvemb.durability.inventory import Inventory
from kvemb.durability.manifest import Epoch, HotRows, Manifest
from kvemb.durability.points import Points
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import CheckpointNotFound, KvembError
from kvemb.journal.journal import Journal
from kvemb.operations.admission_counters import AdmissionCounters, Counters
from kvemb.rows.codec import Ordered, order_keys
from kvemb.rows.schema import Schema
from kvemb.stats import HOST, TierSize
from kvemb.store_state import StoreState
from kvemb.tiers.snapshot import DirtySnapshot
from kvemb.tiers.storage import TieredStorage

# Seconds between two checks of a crowded cold database: the checkpoint waits, so that memtables need not.
PACE_SECONDS = 0.01


@dataclass(frozen=True)
class VariablePart:
    """A variable's part of a checkpoint.

    entry: returns its manifest entry at that time. admission_counters: if it has an Admission.
    """

    name: str
    schema: Schema
    creator: Any
    storage: TieredStorage
    entry: Callable[[], VariableEntry]
    admission_counters: AdmissionCounters | None = None

    def is_clean(self) -> bool:
        """Whether the rows and the counters are those of the current durable point."""
        return (self.admission_counters is None or self.admission_counters.is_saved) and self.storage.is_clean()


class TargetFailed(Exception):
    """The checkpoint could not be written to its target, and is not there; the store itself is sound."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class PointWriter:
    """Writes one point. number: unused by any other point. target: path of a checkpoint to make of it, or None.

    without: variables of the cold database that the point leaves out. attached: files and values to save in it. keep:
    called when it is the store's point, before other points are deleted; its errors are raised as TargetFailed. If a
    step fails, the snapshots end, the directories are deleted, and the previous point stays current, unless it was the
    last step, in which the checkpoint gets its name. undone: whether that has been done, and another point can be
    written instead; not if variables are left out, because they may have been recorded as dropped.
    """

    undone = False

    def __init__(
        self,
        number: int,
        parts: list[VariablePart],
        target: Path | None,
        database: ColdDatabase,
        points: Points,
        changes: ChangeLog,
        log: Journal | None,
        without: Collection[str] = (),
        attached: Attachments | None = None,
        keep: Callable[[], None] | None = None,
    ) -> None:
        self._number, self._parts, self._target, self._without = number, parts, target, list(without)
        self._database, self._points, self._changes, self._log = database, points, changes, log
        self._attached, self._draft, self._keep = attached or Attachments(), points.draft(number), keep
        self._checkpoint: DirectoryDraft | None = None
        self._written: Checkpoint | None = None
        self._snapshots: list[tuple[VariablePart, DirtySnapshot]] = []
        self._numbers, self._finished = count(), deque[tuple[str, SortedFile]]()  # files of rows, with their variables
        self._hot, self._counted = dict[str, Ordered](), dict[str, Counters | None]()
        self._last = False
        self._manifest: Manifest
        self._state: StoreState
        self._base: Future[list[Epoch]] | None = None

    def write_attached(self) -> None:
        """Write the attached files, as the first step. Raises ColdStoreError, and errors of a caller's function."""
        try:
            self._attached.write(self._draft.path / layout.FILES)
        except BaseException:
            self._draft.discard()
            raise

    def take_snapshots(self, in_order: Executor, state: StoreState, closing: Callable[[], None] | None) -> None:
        """Take a snapshot of all variables. Raises Closed, ReadOnly, Poisoned."""
        self._state = state
        try:
            with ExitStack() as held:
                for part in self._parts:
                    held.enter_context(part.storage.access.held())
                state.check_may_flush()
                self._last = closing is not None
                self._rotate(state)
                entries = {part.name: part.entry() for part in self._parts}
                new, given = self._points.describe(self._number, entries, self._without), self._attached
                tiers = _on_gpus({part.name: part.storage.hot_tables.sizes() for part in self._parts})
                self._manifest = replace(new, id=given.id or new.id, extra=given.extra, tiers=tiers)
                for number, part in enumerate(self._parts):
                    self._snapshots.append((part, part.storage.snapshot.begin(len(self._parts) - number)))
                    if self._target is not None or self._last:
                        self._hot[part.name] = order_keys(part.storage.hot_tables.keys(), part.storage.schema)
                    if part.admission_counters is not None:
                        part.admission_counters.freeze()
                self._base = in_order.submit(self._copy_database)
                if closing is not None:
                    closing()
        except BaseException:
            self._abandon()
            raise

    def _rotate(self, state: StoreState) -> None:
        """Begin the segment of the log that follows the point. Raises Poisoned."""
        if self._log is not None and not self._last:
            with state.keeping_rows():
                self._log.rotate()

    def write(self) -> Checkpoint | None:
        """Write the snapshot, and make it the current point. Raises ColdStoreError, TargetFailed."""
        try:
            with layout.as_cold_store_error(f"write {self._draft.target}"):
                self._write()
        except BaseException:
            self._abandon()
            raise
        if self._written is not None and not layout.is_checkpoint(self._written.path):
            # Another process took it away as soon as it was there.
            raise TargetFailed(CheckpointNotFound(paths.describe(self._written.path)))
        return self._written

    def _write(self) -> None:
        assert self._base is not None
        for part in self._parts:
            if part.admission_counters is not None:
                with part.storage.access.held(land=False):
                    self._counted[part.name] = part.admission_counters.frozen()
        while not self._base.done():
            self._relieve(self._snapshots)
            with suppress(TimeoutError):
                self._base.exception(PACE_SECONDS)
        epochs = self._base.result()
        # Before the rows change in the open database: if a later step fails, the next delta must contain them.
        for part, snapshot in self._snapshots:
            self._changes.add(epochs, part.name, snapshot.keys())
            self._relieve(self._snapshots)
        with Inventory(self._draft.path, self._points.folder, self._points.current.files) as inventory:
            inventory.begin(layout.ROWS, ".sst")  # of the copied database: merges made them since the last point
            self._describe(epochs)
            inventory.begin(layout.CHANGES, ".keys")
            inventory.begin(layout.HOT, ".keys")
            cold_databases.amend(self._draft.path / layout.ROWS, drop=self._without, added=self._write_rows())
            self._manifest = described = replace(self._manifest, files=inventory.take())
        if self._target is not None:
            self._write_checkpoint(self._target)
            described = described.following(described.id)
        elif dropped_variables(epochs[-1:]) & {*described.variables}:
            # An epoch can record only one drop of a name, so the next drop of that name needs another epoch.
            described = replace(described, changes=[*epochs, Epoch(described.id)])
        if described is not self._manifest:
            self._changes.begin(described.id, epochs)
        manifest.write(described, self._draft.path)
        self._end_snapshots()
        self._state.check_whole()  # a row that another thread left half-way may be missing
        self._points.publish(self._draft, described, logged=self._log is not None and not self._last)
        for part in self._parts:
            if part.admission_counters is not None:
                part.admission_counters.saved()
        with _naming_target():
            if self._checkpoint is not None:
                self._checkpoint.rename()
            if self._keep is not None:
                self._keep()
        self._points.drop_others()
        if self._log is not None:
            # A closed store has no writes after its point: an unused segment that was prepared is deleted too.
            self._log.delete_before(self._number + 1 if self._last else self._number)

    def _copy_database(self) -> list[Epoch]:
        """Copy the cold database, in order with its writes; returns the epochs up to that moment."""
        for _, snapshot in self._snapshots:
            snapshot.check_written()
        self._database.checkpoint(self._draft.path / layout.ROWS)
        for name in self._without:
            self._changes.record_dropped(name)
        return self._changes.seal_epoch()

    def _write_rows(self) -> Iterator[tuple[str, SortedFile]]:
        """Ingest the marked rows into the database; yields the files, with their variables, for its copy."""

        def ingest(part: VariablePart, file: SortedFile) -> None:
            with part.storage.counting_writes(file.rows):
                self._database.ingest(part.name, file.path)

        for at, (part, snapshot) in enumerate(self._snapshots):
            for files in snapshot.write(partial(self._new_file, part), partial(ingest, part)):
                self._finished.extend((part.name, file) for file in files)
                self._relieve(self._snapshots[at:])
                while files and self._database.crowded(part.name):
                    time.sleep(PACE_SECONDS)
                    self._relieve(self._snapshots[at:])
                yield from self._take_finished()
        yield from self._take_finished()

    def _take_finished(self) -> Iterator[tuple[str, SortedFile]]:
        while self._finished:
            yield self._finished.popleft()

    def _relieve(self, snapshots: list[tuple[VariablePart, DirtySnapshot]]) -> None:
        """Write the copied rows of all variables: otherwise callers of the last one would wait for all others."""
        for part, snapshot in snapshots:
            if snapshot.crowded:  # read without the variable's lock: there may be many variables
                self._finished.extend((part.name, file) for file in snapshot.relieve(partial(self._new_file, part)))

    def _new_file(self, part: VariablePart) -> SortedFile:
        path = self._draft.path / f"{next(self._numbers):06d}.sst"
        return self._database.sorted_file(path, part.schema, part.creator)

    def _describe(self, epochs: list[Epoch]) -> None:
        """Write the key files and the counter files."""
        scratch, points, new = self._draft.path, self._points, self._manifest
        self._changes.link_to(scratch / layout.CHANGES, epochs)
        hot = write_hot(scratch / layout.HOT, new.point, self._hot, points.folder / layout.HOT, new.hot)
        stored = points.adopted_counters, points.counters
        counted = write_counter_files(scratch / layout.COUNTERS, new.point, new.variables, self._counted, *stored)
        self._manifest = replace(new, changes=epochs, hot=hot, sightings=counted)

    def _write_checkpoint(self, target: Path) -> None:
        """Write the checkpoint, complete and synced, but for its name. Raises TargetFailed."""
        entries, point = self._manifest.variables, self._draft.path
        left_out = [name for name, entry in entries.items() if not entry.checkpoint]
        described = self._manifest.only([name for name in entries if name not in left_out])
        with _naming_target():
            draft = self._checkpoint = DirectoryDraft(target)
            with layout.as_cold_store_error(f"write {target}"):
                layout.unpack(point, draft.path, described.named_files | described.attached)
                cold_databases.amend(draft.path / layout.ROWS, drop=left_out)
                described = complete(draft.path, described, point, self._manifest.files, same_names=True)
            draft.sync()
            self._written = written(target, described)

    def _end_snapshots(self) -> None:
        for part in self._parts:
            part.storage.snapshot.end()

    def _abandon(self) -> None:
        self._end_snapshots()
        if self._base is not None and not self._base.cancel():
            self._base.exception()  # waits: it writes into the draft
        self._draft.discard()
        if self._checkpoint is not None:
            self._checkpoint.discard()
        self.undone = not self._without


@contextmanager
def _naming_target() -> Iterator[None]:
    """Translate failures of the checkpoint into TargetFailed."""
    try:
        yield
    except (KvembError, FileExistsError) as error:
        raise TargetFailed(error) from error


def _on_gpus(tiers: dict[str, dict[str, TierSize]]) -> dict[str, dict[str, HotRows]]:
    """Return a manifest's `tiers`: the sizes of the hot tiers of variables with rows on GPUs."""
    return {
        name: {place: HotRows(size.rows, size.nbytes) for place, size in places.items()}
        for name, places in tiers.items()
        if set(places) - {HOST}
    }
