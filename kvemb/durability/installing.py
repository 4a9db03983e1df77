"""Makes a new store from a checkpoint, under a lock until it has a durable point."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvemb.durability import cold_databases, fresh_files, inventory, layout, paths
from kvemb.durability.checkpoint import Checkpoint, atomic_directory, complete
from kvemb.durability.manifest import Manifest
from kvemb.errors import Locked
from kvemb.handle import inside


def install(checkpoint: Path, store: Path, variables: Collection[str] | None = None) -> None:
    """Make a new store directory whose durable point is the checkpoint. Later changes of one do not affect the other.

    variables: names of those to take, None for all. Raises CheckpointNotFound, FileExistsError, KeyError,
    ColdStoreError, Corruption, or ValueError if store is inside another store; then no store is left.
    """
    described = inside(Checkpoint(checkpoint))
    with layout.reading_checkpoint(checkpoint):
        inventory.check(checkpoint, described)
        layout.check_outside_stores(store, "new store")
        paths.check_not_in_series(store)
        if store.exists() and (not store.is_dir() or any(store.iterdir())):
            raise FileExistsError(f"{store} exists and is not empty; name a new directory to restore to")
        names = set(described.variables if variables is None else variables)
        if strange := sorted(names - set(described.variables)):
            known = ", ".join(sorted(described.variables))
            raise KeyError(f"{checkpoint} has no variable {strange[0]!r}; it has {known}")
        cold_databases.check_variables(checkpoint / layout.ROWS, described)
        left_out = sorted(set(described.variables) - names)
        described = replace(described.only(names), left_out=sorted({*described.left_out, *left_out}))
        with restoring(store):
            _make(checkpoint, described, store, left_out)


def _make(checkpoint: Path, described: Manifest, store: Path, left_out: list[str]) -> None:
    try:
        with atomic_directory(layout.point(store, described.point)) as point:
            layout.unpack(checkpoint, point, described.named_files | described.attached)
            with inventory.naming_damaged_file(checkpoint, described):
                cold_databases.amendment(point / layout.ROWS, drop=left_out).finish()
            complete(point, described.following(described.id, restored=True), checkpoint, same_names=True)
        with layout.as_cold_store_error(f"write {store / layout.CURRENT}"):
            layout.set_current(store, described.point)
    except BaseException:
        shutil.rmtree(store, ignore_errors=True)
        raise


def left_by_restore(store: Path) -> bool:
    """Whether a directory has only what a restore makes before it ends: it was killed, or still runs."""
    made = {layout.POINTS, layout.CURRENT + ".tmp"}
    return (store / layout.POINTS).is_dir() and {entry.name for entry in store.iterdir()} <= made


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
