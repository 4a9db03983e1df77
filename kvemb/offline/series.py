"""A series of checkpoints: numbered directories under one root that share unchanged files by hard links.

    ROOT/00000042/    a checkpoint
    ROOT/LOCK         held by the process that writes to the series

A checkpoint appears atomically (kvemb.durability.checkpoint), and is renamed to a hidden name before it is deleted, so
a directory with a number is complete. Each checkpoint has its own hard links, so deleting one does not affect another.
"""

from __future__ import annotations

import builtins
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, overload

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_JOBS, MAX_SERIES
from kvemb.checks.seconds import as_seconds
from kvemb.durability import fresh_files, layout, paths
from kvemb.durability.attachments import Extra, Files
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.durability.layout import series_name
from kvemb.durability.lock_file import LockFile
from kvemb.errors import CheckpointNotFound
from kvemb.handle import inside
from kvemb.offline import leftovers
from kvemb.offline.places import chosen, source_at
from kvemb.offline.resuming import resume
from kvemb.offline.saving import PendingSave
from kvemb.offline.transfer import JOBS, Remote, Transfer
from kvemb.progress import Progress
from kvemb.store import Store


class CheckpointManager:
    """The checkpoints under a root directory, which the first save or pull creates. A context manager.

    keep: how many of the newest a save keeps, None for all. every: seconds between checkpoints of save_if_due(). One
    process writes (save, pull) and holds the series' lock from its first write until close(); any number may read
    (latest, list, push) meanwhile. Not thread-safe.
    """

    def __init__(self, root: str | os.PathLike[str], *, keep: int | None = None, every: float | None = None) -> None:
        self.root = paths.local(root, "root")
        self.every = None if every is None else as_seconds(every, "every")
        self.keep = None if keep is None else as_int(keep, "keep", 1, MAX_SERIES)
        self._lock: LockFile | None = None
        self._pending: PendingCheckpoint[Checkpoint] | None = None
        self._dropping = threading.Lock()
        self._begun: float | None = None

    def numbers(self) -> builtins.list[int]:
        """The numbers of the complete checkpoints, ascending."""
        return paths.series_numbers(self.root)

    def path(self, number: int) -> Path:
        """The path of the checkpoint with this number, whether it exists or not."""
        return self.root / series_name(as_int(number, "number", 0, MAX_SERIES))

    def list(self) -> builtins.list[Checkpoint]:
        """The complete checkpoints, the oldest first. Raises Corruption naming a damaged manifest."""
        found = []
        for number in self.numbers():
            try:
                found.append(Checkpoint(self.path(number)))
            except CheckpointNotFound:
                continue  # deleted since it was listed
        return found

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint, or None. Raises Corruption if its manifest is damaged."""
        checkpoints = self.numbers()
        return Checkpoint(self.path(checkpoints[-1])) if checkpoints else None

    @overload
    def save(
        self, store: Store, *, block: Literal[True] = True, files: Files = None, extra: Extra = None
    ) -> Checkpoint: ...
    @overload
    def save(
        self, store: Store, *, block: Literal[False], files: Files = None, extra: Extra = None
    ) -> PendingCheckpoint[Checkpoint]: ...
    @overload
    def save(
        self, store: Store, *, block: bool, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]: ...

    def save(
        self, store: Store, *, block: bool = True, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]:
        """Write the next checkpoint of the series, as Store.checkpoint does, and delete those beyond `keep`.

        files, extra: what to save beside the rows, such as a model's dense parameters; see Store.checkpoint. With
        block=False old checkpoints are deleted when the new one is complete. Raises Locked if another process writes to
        the series, TypeError for a cluster, whose url is its series, and what Store.checkpoint raises.
        """
        _check_store(store)
        self._hold()
        if self._pending is not None and not self._pending.done():
            self._pending.result()
        self._drop_old()
        path = self.path(max(self.numbers(), default=0) + 1)
        writing = inside(store.checkpoint(path, block=False, files=files, extra=extra))
        pending = PendingCheckpoint(PendingSave(writing, self._drop_old))
        self._pending, self._begun = pending, time.time()
        return pending.result() if block else pending

    def save_if_due(
        self, store: Store, *, block: bool = False, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint] | None:
        """Save if `every` seconds have passed since any process began the last checkpoint; otherwise return None.

        Raises ValueError if the manager has no `every`, and what save raises.
        """
        if self.every is None:
            raise ValueError("save_if_due needs a manager made with every=, the seconds between checkpoints")
        _check_store(store)
        if self._begun is None:
            newest = self.latest()
            self._begun = newest.created if newest is not None else -math.inf
        # A time in the future is from a clock that was set back since.
        waiting = 0 <= time.time() - self._begun < self.every
        return None if waiting else self.save(store, block=block, files=files, extra=extra)

    def resume(self, path: str | os.PathLike[str], **arguments: Any) -> tuple[Store, Checkpoint | None]:
        """Open a store in the state of the newest checkpoint; returns both. If there is none: a new store and None.

        path: of the store. An existing store is deleted first if it was restored from, or saved to, this series:
        training after the newest checkpoint is lost, as its dense parameters are. What a killed call of resume left
        there is deleted, too. If a save was killed just before the checkpoint got its name, the checkpoint is
        completed. arguments: of kvemb.restore and kvemb.open: memory_budget, durability, limits; hot rows are loaded
        unless warm=False.

        Raises FileExistsError if path is anything else, or the root is not a series; Locked if it is open; what
        kvemb.restore raises.
        """
        paths.check_series_root(self.root)
        store = paths.local(path)
        leftovers.complete(self.root, store)
        return resume(self.latest(), store, **arguments)

    def close(self) -> None:
        """Wait for the checkpoint being written, and release the series' lock. Idempotent."""
        try:
            if self._pending is not None and not self._pending.reported:
                self._pending.result()
        finally:
            self._pending = None
            if self._lock is not None:
                self._lock.close()
            self._lock = None

    # Remote.

    def push(
        self,
        url: str | os.PathLike[str],
        *,
        number: int | None = None,
        keep: int | None = None,
        verify: bool = False,
        whole: bool = False,
        options: Mapping[str, Any] | None = None,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a checkpoint to a URL that fsspec supports: only files that the URL lacks, and the manifest last.

        The first checkpoint is sent whole, later ones as the rows that changed since one at the URL. A later one is
        also sent whole if what changed is not known, if the deltas would outgrow the last whole one, or if the whole is
        no larger. whole: always send it whole. number: of the checkpoint, None for the newest. keep: how many of the
        newest are kept at the URL, None for all; with keep, no other process may push there at the same time. options:
        fsspec's for the filesystem. jobs: concurrent files. progress(done, total): called with bytes. After an
        interruption, the next push skips files already sent.

        Every file is hashed while it is sent, and a damaged local file is not sent. A file at the URL is skipped if its
        size is right, since it was hashed when it was sent, and replaced if not, even if the checkpoint is complete
        there. verify: also read all files that the checkpoint needs at the URL, and replace damaged ones. If one is not
        available locally, such as an old delta, the checkpoint is sent whole.

        Raises CheckpointNotFound; FileExistsError if another checkpoint has the number at the URL; TransferError, also
        if the bucket does not exist; Corruption naming a local file; BackendUnavailable; TypeError or ValueError for
        url, keep and jobs.
        """
        keep, jobs = None if keep is None else as_int(keep, "keep", 1, MAX_SERIES), as_int(jobs, "jobs", 1, MAX_JOBS)
        number = None if number is None else as_int(number, "number", 0, MAX_SERIES)
        if layout.is_checkpoint(self.root):
            name, advice = self.root.name, f"move it to a new folder, as FOLDER/{series_name(1)}, and push the folder"
            if name.isdecimal() and name == series_name(int(name)):
                advice = f"push {self.root.parent}, number {int(name)}"
            raise CheckpointNotFound(f"{self.root} is a checkpoint, not a series of them; {advice}")
        if layout.is_store(self.root):
            raise CheckpointNotFound(
                f"{self.root} is a store, not a series of checkpoints; save a checkpoint in a series, and push that"
            )
        paths.check_series_root(self.root)
        number = chosen(number, self.numbers(), str(self.root))
        remote = Remote(url, options)
        how = {"verify": bool(verify), "whole": bool(whole)}
        done = remote.push(Checkpoint(self.path(number)), number, **how, jobs=jobs, progress=progress)
        if keep is not None:
            remote.prune(keep)
        return done

    def pull(
        self,
        url: str | os.PathLike[str],
        *,
        number: int | None = None,
        options: Mapping[str, Any] | None = None,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> Checkpoint:
        """Copy a checkpoint from a URL into the series under its number, and return it; arguments as for push.

        A checkpoint that was pushed as deltas is made whole, from the nearest checkpoint of the series that leads to
        it, otherwise from the base. It has the rows and the id of the pushed one, but its own table files. A cluster's
        shards' checkpoints are merged into one, which records what changed since the newest earlier one that this
        series has, so that Store.apply_delta can apply it to a replica.
        Files that a local checkpoint of the series has, with the right size, are not transferred; the others are
        checked against their checksums, and no more bytes are read than a file's size. A checkpoint that is already in
        the series is returned unchanged. Raises Locked, CheckpointNotFound, TransferError; FileExistsError if another
        checkpoint has the number in the series, or the root is a store or a checkpoint; Corruption naming the file;
        ColdStoreError, BackendUnavailable.
        """
        jobs = as_int(jobs, "jobs", 1, MAX_JOBS)
        number = None if number is None else as_int(number, "number", 0, MAX_SERIES)
        remote = source_at(url, options)
        paths.check_series_root(self.root)
        number = chosen(number, remote.numbers(), str(url))
        self._hold()
        if number in self.numbers():
            local = Checkpoint(self.path(number))
            if local.id != remote.id_of(number):
                raise FileExistsError(f"{local.path} is not the same checkpoint as at {url}; pull into another root")
            return local
        remote.pull(number, self.path(number), self.list(), self.root / layout.PULLED, jobs=jobs, progress=progress)
        return Checkpoint(self.path(number))

    def remote_numbers(
        self, url: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None
    ) -> builtins.list[int]:
        """The numbers of the checkpoints at a URL, ascending. Raises TransferError, BackendUnavailable."""
        return Remote(url, options).numbers()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        numbers = self.numbers()
        span = f"{len(numbers)} checkpoints, the newest {series_name(numbers[-1])}" if numbers else "no checkpoint yet"
        return f"<kvemb.CheckpointManager {self.root}: {span}>"

    def _hold(self) -> None:
        """Take the series' lock, and clear away what a crash left."""
        if self._lock is None or self._lock.closed:  # it is closed if this process was forked from the lock's owner
            paths.check_series_root(self.root)
            with layout.as_cold_store_error(f"write to {self.root}"):
                fresh_files.make_directory(self.root)
                self._lock = layout.lock(self.root, "the series {} is written to", "close it there")
            leftovers.clear(self.root)

    def _drop_old(self) -> None:
        with self._dropping:
            for number in self.numbers()[: -self.keep] if self.keep is not None else []:
                hidden = self.root / layout.dropped_name(number)
                with layout.as_cold_store_error(f"delete {self.path(number)}"):
                    os.rename(self.path(number), hidden)
                    fresh_files.remove(hidden)


def _check_store(store: object) -> None:
    """Raise TypeError for anything but a single store, before the series is created."""
    if not isinstance(store, Store):
        raise TypeError(
            f"store must be a kvemb.Store, got {brief(store)}; a cluster saves to its own url with "
            "checkpoint(keep=), from which pull(url) copies"
        )
