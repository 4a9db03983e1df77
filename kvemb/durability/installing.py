"""Makes a store of a checkpoint: a new one, or an existing one that goes back to it.

Both write a durable point, and the replacement of CURRENT, one rename, makes it the store's. Until then an existing
store is as it was. A new one is locked through its directory of points: it has no lock file yet, and so differs from
one that kvemb.open is creating. What a killed restore left, the next one replaces.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kvemb import fresh_files, hard_links
from kvemb.durability import cold_databases, inventory, layout, manifest, paths
from kvemb.durability.checkpoint import Checkpoint, atomic_directory, complete
from kvemb.durability.manifest import Manifest
from kvemb.errors import Corruption, Locked, StoreNotFound
from kvemb.handle import inside
from kvemb.journal.segment_files import segment_number

_OURS = {layout.LOCK, layout.CURRENT, layout.CURRENT + ".tmp", layout.POINTS, layout.LOG, layout.LIVE, layout.MARKS}
# What a restore makes before it ends, and what a killed deletion of a restored store leaves.
_OF_RESTORE = {layout.POINTS, layout.LOG, layout.CURRENT + ".tmp"}


def install(checkpoint: Path, store: Path, variables: Collection[str] | None = None) -> None:
    """Make a new store directory whose durable point is the checkpoint. Later changes of one do not affect the other.

    variables: names of those to take, None for all. Raises CheckpointNotFound, FileExistsError, KeyError,
    ColdStoreError, Corruption, or ValueError if store is inside another store; then no store is left.
    """
    with _checked(checkpoint, variables) as (described, left_out):
        check_is_new(store)
        paths.check_not_in_series(store)
        with restoring(store):
            clear_left(store, described)
            try:
                _make(checkpoint, described, store, left_out)
            except BaseException:
                discard(store)
                raise


def go_back(checkpoint: Path, store: Path, variables: Collection[str] | None = None) -> None:
    """Make the checkpoint the durable point of an existing store, whose later changes are lost.

    Its number begins a new history (layout.history). REQUIRES: the store's lock. Raises as install() does; then, and if
    this process is killed, the store is as it was, or as in the checkpoint.
    """
    with _checked(checkpoint, variables) as (described, left_out):
        paths.check_own(store)
        numbers = [int(point.name) for point in (store / layout.POINTS).iterdir() if point.name.isdecimal()]
        numbers += filter(None, (segment_number(path.name) for path in (store / layout.LOG).glob("*.log")))
        begin = (layout.history(max(numbers)) + 1) * layout.POINTS_OF_HISTORY
        _make(checkpoint, replace(described, point=begin), store, left_out)
    # The next opening deletes the other points, and the log. Without live/ it does not take the store for crashed.
    fresh_files.remove(store / layout.LIVE)


@contextmanager
def _checked(checkpoint: Path, variables: Collection[str] | None) -> Iterator[tuple[Manifest, list[str]]]:
    """Check a checkpoint; yields its manifest with those variables alone, and the names of the others."""
    described = inside(Checkpoint(checkpoint))
    with layout.reading_checkpoint(checkpoint):
        inventory.check(checkpoint, described)
        check_names(described.variables, variables, str(checkpoint))
        names = set(described.variables if variables is None else variables)
        cold_databases.check_variables(checkpoint / layout.ROWS, described)
        left_out = sorted(set(described.variables) - names)
        yield replace(described.only(names), left_out=sorted({*described.left_out, *left_out})), left_out


def check_names(known: Collection[str], variables: Collection[str] | None, where: str) -> None:
    """Raise KeyError if one of these variables is not among the known ones. where: what has these, for the message."""
    if strange := sorted(set(variables or ()) - set(known)):
        raise KeyError(f"{where} has no variable {strange[0]!r}; it has {', '.join(sorted(known))}")


def _make(checkpoint: Path, described: Manifest, store: Path, left_out: list[str]) -> None:
    with atomic_directory(layout.point(store, described.point)) as point:
        hard_links.check_possible(point, store)
        layout.unpack(checkpoint, point, described.named_files | described.attached)
        with inventory.naming_damaged_file(checkpoint, described):
            cold_databases.amend(point / layout.ROWS, drop=left_out)
        complete(point, described.following(described.id, restored=True), checkpoint, same_names=True)
    with layout.as_cold_store_error(f"write {store / layout.CURRENT}"):
        layout.set_current(store, described.point)


def check_is_new(store: Path) -> None:
    """Raise FileExistsError or ValueError unless a store can be restored to this directory.

    It must be missing or empty, or left by a killed restore.
    """
    layout.check_outside_stores(store, "new store")
    if store.exists() and (not store.is_dir() or (any(store.iterdir()) and not left_by_restore(store))):
        raise FileExistsError(f"{store} exists and is not empty; name a new directory to restore to")


def clear_left(store: Path, described: Manifest | None = None) -> None:
    """Delete what a killed restore left in a directory. REQUIRES: restoring(store).

    described: of the checkpoint that is restored now; None: all of it is deleted. Raises FileExistsError if it has a
    durable point that is more than a copy of a checkpoint of the same store, such as one that has lost CURRENT.
    """
    for point in filter(layout.is_checkpoint, (store / layout.POINTS).glob("[!.]*")):
        if described is None:
            break
        found = manifest.read(point)
        if found.id != found.parent or found.store != described.store:
            raise FileExistsError(
                f"{store} has no {layout.CURRENT}, but {point} may have rows that are in no checkpoint; run kvemb "
                "repair, or restore to another directory"
            )
    with layout.as_cold_store_error(f"delete {store}"):
        for entry in list(store.iterdir()):
            if entry.name != layout.POINTS:  # which is locked
                fresh_files.remove(entry)
        for entry in list((store / layout.POINTS).iterdir()):
            fresh_files.remove(entry)


def discard(store: Path) -> None:
    """Delete a new store that could not be completed or opened. Errors are ignored.

    If this is interrupted, the store is whole, or looks as after a killed restore.
    """
    last = [layout.LOCK, layout.CURRENT, layout.LOG, layout.POINTS]
    with suppress(OSError):
        first = [entry.name for entry in store.iterdir() if entry.name not in last]
        for name in [*first, *last]:
            fresh_files.remove(store / name)
        store.rmdir()


@contextmanager
def restoring(store: Path) -> Iterator[None]:
    """Lock the directory of a store that is being made, until it has a durable point. Raises Locked, ColdStoreError."""
    with layout.as_cold_store_error(f"write {store}"):
        fresh_files.make_directory(store / layout.POINTS)
        folder = os.open(store / layout.POINTS, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Locked(f"another process is restoring {store}; wait until it has ended") from error
        except OSError:
            pass  # a filesystem without locks
        yield
    finally:
        os.close(folder)


def check_store_path(path: Path) -> None:
    """Raise StoreNotFound unless path is a store or can become one: missing, empty, or left by a crash during its
    creation. Raises Corruption if only CURRENT is missing.
    """
    if not path.exists() or layout.is_store(path):
        return
    if not path.is_dir():
        raise StoreNotFound(f"{path} is a file, not a store; name a directory")
    if layout.is_checkpoint(path):
        raise StoreNotFound(f"{path} is a checkpoint, not a store; restore it to another path, or open it read-only")
    if left_by_restore(path) and any((path / layout.POINTS).iterdir()):
        # A new store has its lock before any point; an empty store in place of the restored one would lose its rows.
        raise StoreNotFound(
            f"{path} was left by an interrupted restore, or is being restored; call kvemb.restore, or "
            "CheckpointManager.resume, again, which completes it"
        )
    if points := [
        point
        for point in (path / layout.POINTS).glob("[!.]*")
        if layout.is_checkpoint(point) and manifest.read(point).variables
    ]:
        raise Corruption(f"{path / layout.CURRENT} is missing, but {points[0]} exists; run kvemb repair")
    if not (path / layout.LOCK).exists() and any((path / layout.POINTS).glob("*")):
        raise StoreNotFound(
            f"{path} is not a store: it has {layout.POINTS}, but neither {layout.CURRENT} nor {layout.LOCK}; name "
            "another directory"
        )
    strange = sorted(entry.name for entry in path.iterdir() if entry.name not in _OURS)
    if strange:
        raise StoreNotFound(f"{path} is not a store: it contains {strange[0]!r}; name a store, or an empty directory")


def left_by_restore(path: Path) -> bool:
    """Whether a directory has only the files of an unfinished restore, which was killed or still runs."""
    return (path / layout.POINTS).is_dir() and {entry.name for entry in path.iterdir()} <= _OF_RESTORE
