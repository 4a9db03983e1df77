"""The durable points of one store: opening the last one, unpacked into live/, and publishing the next one.

Opening always starts from the last durable point, so recovery after a crash and an ordinary opening are the same path.
The store's lock file guards the directory against other processes. Not thread-safe: one checkpoint at a time.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kvemb import fresh_files, hard_links
from kvemb.contracts import ColdDatabase
from kvemb.durability import inventory, layout, manifest, paths
from kvemb.durability.admission_counters.point_files import Adopted, Stored
from kvemb.durability.checkpoint import DirectoryDraft, atomic_directory, complete, warn_if_not_closed
from kvemb.durability.installing import check_store_path
from kvemb.durability.manifest import Epoch, Manifest
from kvemb.durability.marks.kept import KEEP_MARKS, Marks
from kvemb.durability.readable import database_in_place
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import KvembError, StoreNotFound
from kvemb.journal import segment_files

Value = TypeVar("Value")


class Points:
    """One store's directory, locked for writing.

    store: the directory. current: the last durable point's manifest. live: the unpacked files. log: the segments that
    follow the point; logged: whether there must be a log. crashed: whether the last owner did not close the store.
    marks: names the points that are kept. copied: the number of the kept point with a copy of which the present history
    of points began in this process, if it did. closed: set when the store is closed. adopted_counters: counter files
    of other checkpoints, for the next point.
    undo: receives the callbacks that release the directory.
    """

    def __init__(self, store: Path, undo: ExitStack, keep_marks: int = KEEP_MARKS) -> None:
        self.store, self.closed = store, False
        self.copied: int | None = None
        self.adopted_counters: Adopted = {}
        paths.check_not_in_series(store)
        try:
            check_store_path(store)
        except StoreNotFound as error:
            if "is a series" in (message := paths.describe(store)):
                raise StoreNotFound(f"{message}, and restore it; a store is another directory") from error
            raise
        fixed = layout.is_store(store) and not os.access(store, os.W_OK)
        with layout.as_cold_store_error(f"open {store}{' for writing, only with read_only=True' * fixed}"):
            self._open(store, undo, keep_marks)

    def _open(self, store: Path, undo: ExitStack, keep_marks: int) -> None:
        fresh_files.make_directory(store)
        undo.enter_context(layout.lock(store))
        undo.callback(self._delete_live)
        paths.check_own(store)
        self.marks = Marks(store, keep_marks)
        self.live = store / layout.LIVE
        self.crashed = self.live.exists() and layout.is_store(store)
        fresh_files.remove(self.live)
        self.live.mkdir()
        hard_links.check_possible(self.live, store)
        if layout.is_store(store):
            point, self.logged = layout.current(store)
            self.current = manifest.read(point)
            inventory.check(point, self.current)
            layout.unpack(point, self.live, self.current.named_files)
            self.drop_others()
        else:
            identity, self.logged = uuid.uuid4().hex, False
            self.current = Manifest(identity, identity, None, 0, manifest.created_now(), changes=[Epoch(identity)])
            fresh_files.remove(store / layout.POINTS)
            (self.live / layout.ROWS).mkdir()
        (self.live / layout.CHANGES).mkdir(exist_ok=True)
        self.log = segment_files.segments(store / layout.LOG, self.current.point, begun=self.logged)
        # An incomplete point may have begun a segment.
        self._last_number = max(
            [self.current.point, *filter(None, (segment_files.segment_number(path.name) for path in self.log))]
        )

    @property
    def folder(self) -> Path:
        """The current point's directory."""
        return layout.point(self.store, self.current.point)

    @property
    def coming_number(self) -> int:
        """What next_number() will return."""
        return self._last_number + 1

    def next_number(self) -> int:
        """Return a new number for a point, never used before."""
        self._last_number += 1
        return self._last_number

    def adopt(self, checkpoint: str) -> None:
        """Make this checkpoint, of this or another store, the parent of the next point."""
        self.current = replace(self.current, parent=checkpoint)

    def set_variables(self, variables: dict[str, VariableEntry]) -> None:
        """Replace the current point's variables, for the next point."""
        self.current = replace(self.current, variables=variables)

    def describe(self, number: int, variables: dict[str, VariableEntry], without: Collection[str]) -> Manifest:
        """Return the manifest of a new point: the current one with these entries, and without some variables."""
        return replace(
            self.current,
            id=uuid.uuid4().hex,
            point=number,
            created=manifest.created_now(),
            variables=_without({**self.current.variables, **variables}, without),
            hot=_without(self.current.hot, without),
            sightings=_without(self.current.sightings, without),
            extra={},
            tiers={},
        )

    def draft(self, number: int) -> DirectoryDraft:
        """Return a directory to be filled with a point, manifest included. Raises ColdStoreError."""
        return DirectoryDraft(layout.point(self.store, number))

    def publish(self, draft: DirectoryDraft, described: Manifest, *, logged: bool) -> None:
        """Make a filled directory the current point. described: its manifest. logged: whether a log's segment follows.

        Raises ColdStoreError. Then CURRENT names the previous point or, if only the last sync failed, this one. Neither
        is deleted before a later point has been published.
        """
        draft.publish()
        self.current, self.adopted_counters = described, {}
        with layout.as_cold_store_error(f"write {self.store / layout.CURRENT}"):
            layout.set_current(self.store, self.current.point, logged=logged)

    def drop_others(self) -> None:
        """Delete all points but the current one and those that marks keep."""
        for other in self.others():
            fresh_files.remove(other)

    def others(self) -> list[Path]:
        """Return all points that nothing needs any more. REQUIRES: none is being written."""
        kept = {layout.point(self.store, number) for number in (self.current.point, *self.marks.points())}
        return [other for other in (self.store / layout.POINTS).iterdir() if other not in kept]

    # Going back to a point that a mark keeps: a copy of it, with a number of its own, becomes the current point.

    def copy_back(self, kept: Path, described: Manifest) -> tuple[Manifest, Path]:
        """Make a point that is a copy of a kept one, and unpack it; returns its manifest and the unpacked files.

        Its number begins a new history (layout.history). Raises Corruption, ColdStoreError; then nothing is left.
        """
        number = self._last_number = (layout.history(self._last_number) + 1) * layout.POINTS_OF_HISTORY
        described = replace(described, id=uuid.uuid4().hex, point=number)
        with atomic_directory(layout.point(self.store, number)) as point:
            layout.link(kept, point, described.files)  # all of them: no file of a point ever changes
            described = complete(point, described, kept, described.files, same_names=True)
        live = self.store / layout.LIVE / f"{number}"
        try:
            layout.unpack(layout.point(self.store, number), live, described.named_files)
            (live / layout.CHANGES).mkdir(exist_ok=True)
        except BaseException:
            self.discard_copy(described, live)
            raise
        return described, live

    def discard_copy(self, described: Manifest, live: Path) -> None:
        """Delete what copy_back() made."""
        fresh_files.remove(live)
        fresh_files.remove(layout.point(self.store, described.point))

    def go_back(self, described: Manifest, live: Path, *, logged: bool) -> list[Path]:
        """Make what copy_back() made the current point; returns the unpacked files of the one before, to be deleted.

        Raises ColdStoreError; then it is unknown which point a crash leads to, until another one is published.
        """
        with layout.as_cold_store_error(f"write {self.store / layout.CURRENT}"):
            layout.set_current(self.store, described.point, logged=logged)
        before, self.live = self.live, live
        self.current, self.adopted_counters = described, {}
        if before != self.store / layout.LIVE:
            return [before]
        # The files of rollbacks are below those with which the store was opened.
        return [before / folder for folder in (layout.ROWS, layout.CHANGES, layout.HOT, layout.COUNTERS)]

    def begin_log(self) -> None:
        """Record in CURRENT that a segment of the log follows the current point. Raises ColdStoreError.

        REQUIRES: the segment exists.
        """
        with layout.as_cold_store_error(f"write {self.store / layout.CURRENT}"):
            layout.set_current(self.store, self.current.point, logged=True)

    @property
    def counters(self) -> Stored:
        """The current point's counter files."""
        return {name: (self.folder / layout.COUNTERS, entry) for name, entry in self.current.sightings.items()}

    def _delete_live(self) -> None:
        """Delete the unpacked files of a closed store, while it is locked: the next owner unpacks them again."""
        if self.closed:
            shutil.rmtree(self.store / layout.LIVE, ignore_errors=True)


def _without(named: dict[str, Value], names: Collection[str]) -> dict[str, Value]:
    return {name: value for name, value in named.items() if name not in names}


@contextmanager
def reading(
    path: Path, open_database: Callable[[Path, Manifest], ColdDatabase]
) -> Iterator[tuple[ColdDatabase, Manifest]]:
    """Open a checkpoint, or a store's last durable point, in place; yields its database and its manifest.

    open_database: opens the rows. A store's owner may replace the point at any time: if opening fails because of that,
    the next point is tried; once open, the files stay readable. Raises StoreNotFound, Corruption, ColdStoreError,
    UnsupportedFormat.
    """
    paths.check_exists(path)
    with ExitStack() as stack:
        while True:
            source = path if layout.is_checkpoint(path) else layout.current_point(path)
            try:
                described = manifest.read(source)
                database = stack.enter_context(database_in_place(source, described, open_database))
                break
            except (KvembError, FileNotFoundError):
                if source == path or layout.current_point(path) == source:
                    raise
        if source != path:
            warn_if_not_closed(path, described)
        yield database, described


@contextmanager
def held_history(store: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether the store at a path still has the history of durable points that it has now.

    A store that was deleted and restored begins a new history: numbers of points and names of key files may be those of
    the old one, with other content. Its directory of points is then another one. It is held open, because filesystems
    give the inode number of a deleted directory to the next one. Without such a directory there is no history. A store
    that goes back in place is recognised by the numbers of its points instead (layout.history).
    """
    points = store / layout.POINTS
    try:
        handle = os.open(points, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        yield lambda: False
        return

    def is_there() -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(handle), os.stat(points))
        return False

    try:
        yield is_there
    finally:
        os.close(handle)
