"""Checkpoints: directories that appear atomically and never change, each with a manifest (kvemb.durability.manifest).

On the store's filesystem a checkpoint shares unchanged files by hard links. Any number of processes may read it.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from kvemb import fresh_files
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_ROWS
from kvemb.durability import layout, manifest, paths
from kvemb.durability.attachments import AttachedFiles
from kvemb.durability.delta import Change, differences, epochs_since
from kvemb.durability.epochs import dropped_variables
from kvemb.durability.inventory import Inventory
from kvemb.durability.manifest import FileEntry, HotRows, Manifest
from kvemb.durability.readable import opened
from kvemb.durability.scratch import delete_abandoned, hold
from kvemb.durability.variable_entry import VariableEntry, rows_in_words
from kvemb.errors import CheckpointNotFound
from kvemb.handle import Handle, inside
from kvemb.journal import segment_files
from kvemb.limits import DEFAULT
from kvemb.options import format_time

# Temporary names are not reused: a failed attempt's exception may keep its database open.
_attempts = count(1)
_logger = logging.getLogger("kvemb")


class Checkpoint(Handle[Manifest], os.PathLike[str]):
    """Read a complete checkpoint: what it has, and what changed since an earlier one.

    ``Store.checkpoint`` returns one. A ``Checkpoint`` can be used as a path, too (``os.PathLike``); its
    attribute ``path`` is the directory. Immutable.

    Args:
        path: The checkpoint's directory.

    Raises:
        CheckpointNotFound: There is no complete checkpoint at the path.
        UnsupportedFormat: It was written by a kvemb with another format.
        Corruption: Its manifest is damaged.

    Example:
        >>> _ = store.checkpoint("backup", extra={"epoch": 1})
        >>> saved = kvemb.Checkpoint("backup")
        >>> saved.variables["users"].rows, saved.extra
        (3, {'epoch': 1})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = paths.local(path)
        try:
            super().__init__(manifest.read(self.path))
        except CheckpointNotFound as error:
            raise CheckpointNotFound(paths.describe(self.path)) from error

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return the checkpoint at a path, or the last durable point of the store at a path.

        Args:
            path: The directory of a checkpoint or of a store.

        Returns:
            The checkpoint. A durable point is one inside a store; the store's next durable point replaces it.

        Raises:
            CheckpointNotFound: The store's durable point is not complete.
            StoreNotFound: There is neither a checkpoint nor a store at the path.
            UnsupportedFormat: It was written by a kvemb with another format.
            Corruption: Its manifest is damaged.
        """
        directory = paths.local(path)
        if layout.is_checkpoint(directory):
            return cls(directory)
        paths.check_exists(directory)
        point = cls(layout.current_point(directory))
        warn_if_not_closed(directory, inside(point))
        return point

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def id(self) -> str:
        """The checkpoint's identity: 32 hexadecimal digits, kept by copies."""
        return self._inside.id

    @property
    def parent(self) -> str | None:
        """The id of the checkpoint before it; None for the first of its store."""
        return self._inside.parent

    @property
    def created(self) -> float:
        """When its snapshot was taken, in seconds since 1970."""
        return self._inside.created

    @property
    def variables(self) -> Mapping[str, VariableEntry]:
        """Its variables by name, with their schema, policy, optimizer, rows and step."""
        return self._inside.variables

    @property
    def inventory(self) -> Mapping[str, FileEntry]:
        """The size in bytes and the sha256 of each file by its relative path. The manifest is not included."""
        return self._inside.files

    @property
    def files(self) -> Mapping[str, Path]:
        """The paths of the files that were saved with it, by name. Do not write to them.

        Getting one reads the whole file.

        Raises:
            Corruption: The file differs from the saved one.
            KeyError: There is no file of this name.
        """
        return AttachedFiles(self.path, self._inside)

    @property
    def extra(self) -> dict[str, Any]:
        """A copy of the values that were saved with it; empty if there were none."""
        return copy.deepcopy(self._inside.extra)

    @property
    def tiers(self) -> Mapping[str, Mapping[str, HotRows]]:
        """The rows and bytes in each memory, "gpu:0" or "host", for each variable that had hot rows on a GPU."""
        return self._inside.tiers

    @property
    def nbytes(self) -> int:
        """The bytes of its files, shared ones included."""
        return sum(entry.bytes for entry in self.inventory.values())

    def changes(
        self,
        since: str | os.PathLike[str],
        *,
        variables: Collection[str] | None = None,
        batch_rows: int = DEFAULT.scan_rows,
    ) -> Iterator[Change]:
        """Iterate over what changed since an earlier checkpoint of the same store, exactly.

        A row counts as changed if its embedding, slots, score or step of last change differ. Only the rows of recorded
        keys are read, not whole tables.

        Args:
            since: The earlier checkpoint, which must still exist.
            variables: Names of variables. None: all, including those that were dropped since, or left out of
                checkpoints since (``checkpoint=False``); all their keys are reported as removed.
            batch_rows: The most keys in a batch.

        Yields:
            A ``Change`` for each batch, in key order.

        Raises:
            CheckpointNotFound: The earlier checkpoint is gone; or this one does not follow it, or follows it by more
                checkpoints than are recorded.
            Corruption: Bytes on disk differ from what was written.
            ColdStoreError: The disk could not be read.
            KeyError: There is no variable of a name.
            TypeError, ValueError: ``batch_rows`` is not an int above 0.

        Example:
            >>> first = store.checkpoint("first")
            >>> users.upsert([2], [[7, 7]])
            >>> for change in store.checkpoint("second").changes(first):
            ...     print(change.variable, change.keys, change.values)
            users [2] [[7. 7.]]
        """
        earlier = Checkpoint(since)
        gone = dropped_variables(epochs_since(self.path, self._inside, earlier.id)) & set(earlier.variables)
        known = {*self.variables, *gone}
        names = sorted(known if variables is None else variables)
        if strange := [name for name in names if name not in known]:
            raise KeyError(f"{self.path} has no variable {strange[0]!r}; it has {', '.join(sorted(self.variables))}")
        return self._changes(earlier, names, as_int(batch_rows, "batch_rows", 1, MAX_ROWS))

    def _changes(self, earlier: Checkpoint, names: list[str], batch_rows: int) -> Iterator[Change]:
        with opened(earlier.path, inside(earlier)) as before, opened(self.path, self._inside) as after:
            yield from differences(before, after, names, batch_rows)

    def __repr__(self) -> str:
        return f"<kvemb.Checkpoint {self.path}, {rows_in_words(self.variables)}>"


def warn_if_not_closed(store: Path, point: Manifest) -> None:
    """Log a warning if a store that is read was not closed: a reader sees its durable point, not its log."""
    if layout.was_not_closed(store):
        later = segment_files.has_writes(store / layout.LOG, point.point, begun=layout.current(store)[1])
        _logger.warning(
            "the store %s was not closed; it is read as of its durable point of %s%s",
            store,
            format_time(point.created),
            ": open it for writing to recover the later writes in its log" if later else "",
        )


class DirectoryDraft:
    """A new directory, filled under the temporary name `path`, then synced and renamed to target, or else discarded.

    Deletes what killed processes left of it. Raises FileExistsError if target exists, ColdStoreError for an OSError.
    """

    def __init__(self, target: Path) -> None:
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists; name a new directory for the checkpoint")
        self.target = target
        self.path = target.with_name(layout.temporary_name(target.name, next(_attempts)))
        with layout.as_cold_store_error(f"write {target}"):
            fresh_files.make_directory(target.parent)
            fresh_files.remove(self.path)
            self.path.mkdir()
            self._held = ExitStack()
            self._held.callback(os.close, hold(self.path))
        delete_abandoned(target.parent, layout.temporary_names(target.name))

    def publish(self) -> None:
        """Sync it and rename it to its target. Raises ColdStoreError."""
        self._sync_content()
        self.rename()

    def sync(self) -> None:
        """Wait until it is on disk under its temporary name; its files must be. Raises ColdStoreError."""
        self._sync_content()
        with layout.as_cold_store_error(f"write {self.target}"):
            fresh_files.sync_directory(self.path.parent)

    def _sync_content(self) -> None:
        with layout.as_cold_store_error(f"write {self.target}"):
            fresh_files.sync_tree(self.path)

    def rename(self) -> None:
        """Rename it to its target, durably. Raises ColdStoreError; then target is not there. REQUIRES: it is synced."""
        with layout.as_cold_store_error(f"write {self.target}"):
            os.rename(self.path, self.target)
            try:
                fresh_files.sync_directory(self.target.parent)
            except OSError:
                os.rename(self.target, self.path)
                raise
        self._held.close()

    def discard(self) -> None:
        """Delete it. Does nothing once it has its target's name."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary directory next to target, which is synced and renamed to target if the block succeeds.

    Raises FileExistsError if target exists, ColdStoreError for an OSError; then nothing is left.
    """
    draft = DirectoryDraft(target)
    try:
        with layout.as_cold_store_error(f"write {target}"):
            yield draft.path
        draft.publish()
    except BaseException:
        draft.discard()
        raise


def complete(
    directory: Path,
    described: Manifest,
    before: Path | None = None,
    known: dict[str, FileEntry] | None = None,
    *,
    same_names: bool = False,
) -> Manifest:
    """Take the inventory of a directory's files and write its manifest; returns the manifest.

    before: a checkpoint; files that are shared with it are not read again. known: its files; None: those of its
    manifest. same_names: table files must have the checksums that they have in it. Raises Corruption.
    """
    if before is not None and known is None:
        known = manifest.read(before).files
    with Inventory(directory, before, known or {}) as inventory:
        described = replace(described, files=inventory.take(same_names=same_names))
    manifest.write(described, directory)
    return described


def written(path: Path, described: Manifest) -> Checkpoint:
    """Return the checkpoint that this process has written to a path; its manifest is not read again."""
    made = Checkpoint.__new__(Checkpoint)
    made.path = path
    Handle.__init__(made, described)
    return made
