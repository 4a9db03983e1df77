"""The durable points of one store: the state it opens with, unpacked into live/, and the step to the next one.

Opening always starts from the last durable point, so recovery after a crash and an ordinary opening are the same thing.
The store's lock file guards the directory against other processes; within the store, one checkpoint at a time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kvemb.contracts import ColdDatabase
from kvemb.durability import fresh_files, inventory, journal_segments, layout, manifest, paths
from kvemb.durability.checkpoint import DirectoryDraft, check_there, complete, describe_path, tell_if_left
from kvemb.durability.manifest import Epoch, Manifest, VariableEntry
from kvemb.durability.readable import database_in_place
from kvemb.errors import KvembError, StoreNotFound

Value = TypeVar("Value")


class Points:
    """One store's directory, held for writing.

    store: that directory. current: the last durable point's manifest. live: the unpacked files. log: segments that go
    on from there; logged: whether there must be one. crashed: whether the last owner did not close the store. undo:
    receives what releases the directory.
    """

    def __init__(self, store: Path, undo: ExitStack) -> None:
        self.store = store
        paths.check_no_number(store)
        try:
            layout.check_place_for_store(store)
        except StoreNotFound as error:
            if "is a series" in (there := describe_path(store)):
                raise StoreNotFound(f"{there}, and restore it; a store is another directory") from error
            raise
        with layout.as_cold_store_error(f"open {store}"):
            self._take(store, undo)

    def _take(self, store: Path, undo: ExitStack) -> None:
        fresh_files.make_directory(store)
        undo.enter_context(layout.lock(store))
        paths.check_own(store)
        self.live = store / layout.LIVE
        self.crashed = self.live.exists() and layout.is_store(store)
        fresh_files.remove(self.live)
        if layout.is_store(store):
            point, self.logged = layout.current(store)
            self.current = manifest.read(point)
            inventory.check(point, self.current)
            layout.unpack(point, self.live, self.current.key_files)
            self._drop_points_but(point.name)
        else:
            identity, self.logged = uuid.uuid4().hex, False
            self.current = Manifest(identity, identity, None, 0, time.time(), changes=[Epoch(identity)])
            fresh_files.remove(store / layout.POINTS)
            (self.live / layout.ROWS).mkdir(parents=True)
        (self.live / layout.CHANGES).mkdir(exist_ok=True)
        self.log = journal_segments.segments(store / layout.LOG, self.current.point, begun=self.logged)
        # A point that was not completed may have begun a segment.
        self._last_number = max(
            [self.current.point, *filter(None, (layout.segment_number(path.name) for path in self.log))]
        )

    @property
    def folder(self) -> Path:
        """The current point's."""
        return layout.point(self.store, self.current.point)

    def next_number(self) -> int:
        """Return a number for a point that no point ever had."""
        self._last_number += 1
        return self._last_number

    def adopt(self, checkpoint: str) -> None:
        """The next point follows this checkpoint, of whatever store."""
        self.current = replace(self.current, parent=checkpoint)

    def amend(self, variables: dict[str, VariableEntry]) -> None:
        """The state is that of the current point with these variables; the next point has it."""
        self.current = replace(self.current, variables=variables)

    def describe(self, number: int, variables: dict[str, VariableEntry], without: Collection[str]) -> Manifest:
        """Return the description of a point: the current one's, with these entries new, and without some variables."""
        return replace(
            self.current,
            id=uuid.uuid4().hex,
            point=number,
            created=time.time(),
            variables=_without({**self.current.variables, **variables}, without),
            hot=_without(self.current.hot, without),
        )

    def draft(self, number: int) -> DirectoryDraft:
        """Return the folder to fill for a point, its manifest included. Raises ColdStoreError."""
        return DirectoryDraft(layout.point(self.store, number))

    def publish(self, draft: DirectoryDraft, *, logged: bool) -> None:
        """Make a folder that was filled the current point. logged: whether a segment of the log goes on from it.

        Raises ColdStoreError; then the point before it still is.
        """
        draft.publish()
        self.current = manifest.read(draft.target)
        with layout.as_cold_store_error(f"write {self.store / layout.CURRENT}"):
            layout.set_current(self.store, self.current.point, logged=logged)
        self._drop_points_but(draft.target.name)

    def begin_log(self) -> None:
        """A segment of the log goes on from the current point from here on, and is there. Raises ColdStoreError."""
        with layout.as_cold_store_error(f"write {self.store / layout.CURRENT}"):
            layout.set_current(self.store, self.current.point, logged=True)

    def complete(self, scratch: Path, described: Manifest) -> Manifest:
        """Describe the folder of a point; what it shares with the current one is not read again."""
        return complete(scratch, described, self.folder if layout.is_checkpoint(self.folder) else None)

    def _drop_points_but(self, name: str) -> None:
        for other in (self.store / layout.POINTS).iterdir():
            if other.name != name:
                fresh_files.remove(other)


def _without(named: dict[str, Value], names: Collection[str]) -> dict[str, Value]:
    return {name: value for name, value in named.items() if name not in names}


@contextmanager
def reading(
    path: Path, open_database: Callable[[Path, Manifest], ColdDatabase]
) -> Iterator[tuple[ColdDatabase, Manifest]]:
    """Open a checkpoint, or a store's last durable point, to be read in place; yields its rows and its manifest.

    open_database: opens the rows. The owner of a store may replace the point at any time: before it is open, the next
    one is tried; after, the files stay readable. Raises StoreNotFound, Corruption, ColdStoreError, UnsupportedFormat.
    """
    check_there(path)
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
            tell_if_left(path, described)
        yield database, described
