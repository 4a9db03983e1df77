"""A series of checkpoints: numbered directories under one root that share unchanged files by hard links.

Longer than 300 lines: every call on a series is defined here, with its docstring.

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
from kvemb.durability.attachments import Attachments, Extra, Files
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.durability.layout import series_name
from kvemb.durability.lock_file import LockFile
from kvemb.errors import CheckpointNotFound
from kvemb.handle import inside
from kvemb.offline import leftovers
from kvemb.offline.places import chosen, source_at
from kvemb.offline.resuming import resume
from kvemb.offline.transfer import JOBS, Pulling, Remote, Transfer
from kvemb.progress import Progress
from kvemb.shared_docs import described_as
from kvemb.store import Store


class CheckpointManager:
    """Keep a series of checkpoints under a root directory, and copy them to and from URLs.

    The first ``save`` or ``pull`` creates the root. One process writes to the series (``save``, ``pull``), and holds
    its lock from its first write until ``close()``. Any number of processes may read it (``latest``, ``list``,
    ``push``) meanwhile. Use the manager in a ``with`` block, which closes it. Its arguments are its attributes, too.
    Not thread-safe.

    Args:
        root: The directory of the series.
        keep: How many of the newest checkpoints a save keeps. None: all.
        every: Seconds between checkpoints of ``save_if_due``. None: ``save_if_due`` is not used.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``root`` is a URL, or a number is out of range.

    Example:
        >>> with kvemb.CheckpointManager("series", keep=3) as series:
        ...     saved = series.save(store)
        ...     series.numbers(), series.latest().id == saved.id
        ([1], True)
    """

    def __init__(self, root: str | os.PathLike[str], *, keep: int | None = None, every: float | None = None) -> None:
        self.root: Path = paths.local(root, "root")
        self.every: float | None = None if every is None else as_seconds(every, "every")
        self.keep: int | None = None if keep is None else as_int(keep, "keep", 1, MAX_SERIES)
        self._lock: LockFile | None = None
        self._pending: PendingCheckpoint[Checkpoint] | None = None
        self._dropping = threading.Lock()
        self._begun: float | None = None

    def numbers(self) -> builtins.list[int]:
        """List the numbers of the complete checkpoints.

        Returns:
            The numbers, ascending; empty if there is no series yet.
        """
        return paths.series_numbers(self.root)

    def path(self, number: int) -> Path:
        """Return the path of the checkpoint with a number, whether it exists or not.

        Args:
            number: The checkpoint's number.

        Returns:
            A path such as ``ROOT/00000042``.

        Raises:
            TypeError: ``number`` is not an int.
            ValueError: ``number`` is negative or too large.
        """
        return self.root / series_name(as_int(number, "number", 0, MAX_SERIES))

    def list(self) -> builtins.list[Checkpoint]:
        """List the complete checkpoints, the oldest first.

        Returns:
            The checkpoints.

        Raises:
            Corruption: A manifest is damaged; the message names it.
        """
        found = []
        for number in self.numbers():
            try:
                found.append(Checkpoint(self.path(number)))
            except CheckpointNotFound:
                continue  # deleted since it was listed
        return found

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint.

        Returns:
            The checkpoint; None if there is none.

        Raises:
            Corruption: Its manifest is damaged.
        """
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

    @described_as(Store.checkpoint)
    def save(
        self, store: Store, *, block: bool = True, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint]:
        """Write the next checkpoint of the series, and delete those beyond ``keep``.

        The checkpoint is that of ``Store.checkpoint``. With ``block=False`` old checkpoints are deleted when the new
        one is complete.

        Args:
            store: The store. A cluster has a series of its own at its URL.

        Returns:
            The ``Checkpoint``; with ``block=False`` a ``PendingCheckpoint``, at once.

        Raises:
            Locked: Another process writes to the series.
            TypeError: ``store`` is not a ``kvemb.Store``, or an argument has the wrong type.
            ValueError: The root is inside a store, or ``files`` or ``extra`` is not valid.
            ColdStoreError: The checkpoint could not be written. The store can still be used.
            Poisoned: A write of the store's own files failed, in this call or earlier.
            Closed: The store is closed.
            ReadOnly: The store is read-only.
        """
        _check_store(store)
        self._hold()
        if self._pending is not None and not self._pending.done():
            self._pending.result()
        self._drop_old()
        path = self.path(max(self.numbers(), default=0) + 1).absolute()
        pending = inside(store).start(path, attached=Attachments(files, extra), completed=self._drop_old)
        self._pending, self._begun = pending, time.time()
        if not block:
            return pending
        checkpoint: Checkpoint = pending.result()
        self._drop_old()  # raises what it could not delete
        return checkpoint

    @described_as(save)
    def save_if_due(
        self, store: Store, *, block: bool = False, files: Files = None, extra: Extra = None
    ) -> Checkpoint | PendingCheckpoint[Checkpoint] | None:
        """Save a checkpoint if ``every`` seconds have passed since the last one began, in this or any other process.

        Call it after each step, with the dense parameters in ``files``. Each checkpoint then has the rows and the
        parameters of the same step. It raises what ``save`` raises.

        Returns:
            What ``save`` returns; None if no checkpoint is due.

        Raises:
            ValueError: The manager was made without ``every``.

        Example:
            >>> with kvemb.CheckpointManager("series", every=600) as series:
            ...     for step in range(3):
            ...         users.apply_gradients([1], [[1, 1]])
            ...         saved = series.save_if_due(store, extra={"step": step})
            >>> [checkpoint.extra for checkpoint in series.list()]
            [{'step': 0}]
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
        """Open a store in the state of the newest checkpoint, to continue training after a crash.

        A store that is at the path is deleted first, if it was restored from this series or saved to it. Training after
        the newest checkpoint is lost, so that the rows fit the dense parameters in it. What a killed call of ``resume``
        left there is deleted, too. If a save was killed just before the checkpoint got its name, the checkpoint is
        completed.

        Args:
            path: The directory of the store.
            **arguments: Those of ``kvemb.restore`` and ``kvemb.open``, such as ``memory_budget``, ``durability`` and
                ``limits``. Rows that were hot are loaded, unless ``warm=False``. ``flush_every`` is refused: call
                ``save_if_due``.

        Returns:
            The open store and the checkpoint. If there is no checkpoint: a new store and None.

        Raises:
            FileExistsError: There is something else at ``path``, or the root is not a series.
            Locked: The store is open.
            ValueError: An argument is not valid.
            TypeError: An argument has the wrong type.
            Corruption: Bytes on disk differ from what was written.
            UnsupportedFormat: The checkpoint was written by a kvemb with another format.
            ColdStoreError: The disk could not be read or written.

        Example:
            >>> with kvemb.CheckpointManager("series") as series:
            ...     resumed, last = series.resume("training")  # a new store
            ...     with resumed:
            ...         _ = series.save(resumed, extra={"step": 10})
            ...     resumed, last = series.resume("training")
            ...     resumed.close()
            >>> last.extra
            {'step': 10}
        """
        paths.check_series_root(self.root)
        store = paths.local(path)
        leftovers.complete(self.root, store)
        return resume(self.latest(), store, **arguments)

    def close(self) -> None:
        """Wait for the checkpoint being written, and release the series' lock. Calling it again does nothing.

        An error of ``save(block=False)`` that no call has raised yet is raised here.

        Raises:
            ColdStoreError: That checkpoint could not be written.
            Poisoned: A write of the store's own files failed.
        """
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
        """Copy a checkpoint to a URL that fsspec supports: files that the URL lacks, and the manifest last.

        The first checkpoint is sent whole, later ones as the rows that changed since one at the URL. A later one is
        sent whole if the changes are not known, if it is no larger than them, or once the deltas would outgrow the last
        whole one. After an interruption, the next push skips files that were already sent.

        Every file is hashed while it is sent, and a damaged local file is not sent. A file at the URL is skipped if its
        size is right, since it was hashed when it was sent. Otherwise it is replaced, even if the checkpoint is
        complete there.

        Args:
            url: A URL such as ``"s3://bucket/series"``, or a directory.
            number: The checkpoint's number. None: the newest.
            keep: How many of the newest checkpoints to keep at the URL. None: all. With ``keep``, no other process may
                push there at the same time.
            verify: Whether to also read all files that the checkpoint needs at the URL, and replace damaged ones. If
                one is not available locally, such as an old delta, the checkpoint is sent whole.
            whole: Whether to send it whole in any case.
            options: fsspec's options for the filesystem, a dict.
            jobs: How many files to transfer at a time.
            progress: ``fn(done, total)``, called with bytes.

        Returns:
            What was sent.

        Raises:
            CheckpointNotFound: The series has no such checkpoint.
            FileExistsError: Another checkpoint has the number at the URL, or the URL or the root is a store or a
                checkpoint.
            TransferError: The URL could not be read or written, for example because the bucket does not exist.
            Corruption: A local file is damaged; the message names it.
            BackendUnavailable: fsspec, or what it needs for the URL, is not installed.
            TypeError, ValueError: An argument is not valid.

        Example:
            >>> with kvemb.CheckpointManager("series") as series:
            ...     saved = series.save(store)
            ...     series.push("far_away").number
            1
        """
        keep, jobs = None if keep is None else as_int(keep, "keep", 1, MAX_SERIES), as_int(jobs, "jobs", 1, MAX_JOBS)
        number = None if number is None else as_int(number, "number", 0, MAX_SERIES)
        paths.check_series_root(self.root)
        number = chosen(number, self.numbers(), str(self.root))
        remote = Remote(url, options)
        how = {"verify": bool(verify), "whole": bool(whole)}
        done = remote.push(Checkpoint(self.path(number)), number, **how, jobs=jobs, progress=progress)
        if keep is not None:
            remote.prune(keep)
        return done

    @described_as(push)
    def pull(
        self,
        url: str | os.PathLike[str],
        *,
        number: int | None = None,
        options: Mapping[str, Any] | None = None,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> Checkpoint:
        """Copy a checkpoint from a URL into the series, under its number.

        A checkpoint that was pushed as deltas is made whole, from the nearest checkpoint of the series that leads to
        it, or else from the last whole one at the URL. It has the rows and the id of the pushed one, but its own table
        files. The checkpoints of a cluster's shards are merged into one. That one records what changed since the newest
        earlier one that this series has, so that ``Store.apply_delta`` can apply it to a replica.

        Files that a local checkpoint of the series has, with the right size, are not transferred. The others are
        checked against their checksums, and no more bytes are read than a file's size. A checkpoint that is already in
        the series is returned unchanged.

        Args:
            url: A URL or a directory to which a series was pushed, or the URL of a cluster.

        Returns:
            The checkpoint in the series.

        Raises:
            Locked: Another process writes to the series.
            CheckpointNotFound: There is no such checkpoint at the URL.
            TransferError: The URL could not be read.
            FileExistsError: Another checkpoint has the number in the series, or the root is a store or a checkpoint.
            Corruption: A file at the URL is damaged; the message names it.
            ColdStoreError: The disk could not be written.
            BackendUnavailable: fsspec, or what it needs for the URL, is not installed.
            TypeError, ValueError: An argument is not valid.

        Example:
            >>> with kvemb.CheckpointManager("series") as series:
            ...     _ = series.save(store), series.push("far_away")
            >>> with kvemb.CheckpointManager("copy") as copy:
            ...     copy.pull("far_away").variables["users"].rows
            3
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
        remote.pull(number, self.path(number), self.list(), self.root / layout.PULLED, Pulling(jobs, progress))
        return Checkpoint(self.path(number))

    @described_as(pull)
    def remote_numbers(
        self, url: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None
    ) -> builtins.list[int]:
        """List the numbers of the checkpoints at a URL.

        Returns:
            The numbers, ascending.

        Raises:
            TransferError: The URL could not be read.
            BackendUnavailable: fsspec, or what it needs for the URL, is not installed.
            TypeError, ValueError: An argument is not valid.
        """
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
        with self._dropping, layout.as_cold_store_error(f"delete old checkpoints of {self.root}"):
            for number in self.numbers()[: -self.keep] if self.keep is not None else []:
                hidden = self.root / layout.dropped_name(number)
                os.rename(self.path(number), hidden)
                fresh_files.remove(hidden)


def _check_store(store: object) -> None:
    """Raise TypeError for anything but a single store, before the series is created."""
    if not isinstance(store, Store):
        raise TypeError(
            f"store must be a kvemb.Store, got {brief(store)}; a cluster saves to its own url: call its "
            "checkpoint(keep=), then pull(url)"
        )
