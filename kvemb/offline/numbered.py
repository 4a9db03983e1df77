"""A series of checkpoints: numbered directories under one root that share unchanged files by hard links.

    ROOT/00000042/    a checkpoint
    ROOT/LOCK         held by the process that writes to the series

A series belongs to one store, that of its newest checkpoint, and to those restored from its checkpoints: they share an
identity. Another store's checkpoints are refused unless the caller says so, and never deleted to make room.

A checkpoint appears atomically (kvemb.durability.checkpoint), and is renamed to a hidden name before it is deleted, so
a directory with a number is complete. Each checkpoint has its own hard links, so deleting one does not affect another.
Every call on a series that needs no store is defined here, with its docstring.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvemb import fresh_files
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_JOBS, MAX_SERIES
from kvemb.durability import layout, paths
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.layout import series_name
from kvemb.durability.lock_file import LockFile
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.handle import inside
from kvemb.masking import masked
from kvemb.offline import leftovers
from kvemb.offline.chain import check_owner
from kvemb.offline.pins import check_name, read_pins, write_pins
from kvemb.offline.places import chosen, source_at
from kvemb.offline.transfer import JOBS, Pulling, Remote, Transfer
from kvemb.progress import Progress
from kvemb.shared_docs import described_as
from kvemb.threads.interrupts import uninterrupted


class NumberedCheckpoints:
    """The part of kvemb.CheckpointManager that lists checkpoints, deletes old ones, and copies them to and from URLs.

    keep: how many of the newest are kept when another is saved, beside pinned ones; None: all. Raises TypeError,
    ValueError.
    """

    def __init__(self, root: str | os.PathLike[str], keep: int | None) -> None:
        self.root: Path = paths.local(root, "root")
        self.keep: int | None = None if keep is None else as_int(keep, "keep", 1, MAX_SERIES)
        self._lock: LockFile | None = None
        self._dropping = threading.Lock()
        self._stores: dict[int, str] = {}  # the identity of each checkpoint's store, once it was read

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

    @property
    def pinned(self) -> dict[int, str | None]:
        """The numbers of the pinned checkpoints, ascending, each with the name of its pin, or None.

        Raises:
            Corruption: The file that lists them is damaged.
        """
        there = set(self.numbers())
        return {number: name for number, name in read_pins(self.root).items() if number in there}

    def pin(self, number: int, name: str | None = None) -> None:
        """Keep a checkpoint of the series, however many newer ones there are.

        Args:
            number: The checkpoint's number.
            name: A name, such as ``"best"``; the checkpoint that had it until now is no longer pinned. None: no name.

        Raises:
            CheckpointNotFound: The series has no such checkpoint.
            Locked: Another process writes to the series.
            TypeError, ValueError: An argument is not valid.
            Corruption: The file that lists the pins is damaged.
            ColdStoreError: The disk could not be written.

        Example:
            >>> with kvemb.CheckpointManager("series", keep=1) as series:
            ...     _ = series.save(store)
            ...     series.pin(1, "best")
            ...     _ = series.save(store), series.save(store)
            ...     series.numbers(), series.pinned
            ([1, 3], {1: 'best'})
        """
        name = check_name(name, "name")
        number = chosen(as_int(number, "number", 0, MAX_SERIES), self.numbers(), str(self.root))
        self._hold()
        self._pin(number, name)

    def unpin(self, number: int) -> None:
        """Let a checkpoint be deleted by a later ``save``, as others are.

        Args:
            number: The checkpoint's number. One that is not pinned stays so.

        Raises:
            Locked: Another process writes to the series.
            TypeError, ValueError: ``number`` is not valid.
            Corruption: The file that lists the pins is damaged.
            ColdStoreError: The disk could not be written.
        """
        number = as_int(number, "number", 0, MAX_SERIES)
        self._hold()
        with uninterrupted(), self._dropping:
            if number in (pins := read_pins(self.root)):
                del pins[number]
                write_pins(self.root, pins)

    def _pin(self, number: int, name: str | None) -> None:
        with uninterrupted(), self._dropping:
            there = {*self.numbers(), number}
            pins = {each: of for each, of in read_pins(self.root).items() if each in there}
            if name is not None:
                pins = {each: of for each, of in pins.items() if of != name}
            write_pins(self.root, {**pins, number: name})

    def push(
        self,
        url: str | os.PathLike[str],
        *,
        number: int | None = None,
        keep: int | None = None,
        verify: bool = False,
        whole: bool = False,
        take_over: bool = False,
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
            keep: How many of the store's newest checkpoints to keep at the URL, beside those that are pinned here.
                Those of other stores stay. None: all. With ``keep``, no other process may push there at the same time.
            verify: Whether to also read all files that the checkpoint needs at the URL, and replace damaged ones. If
                one is not available locally, such as an old delta, the checkpoint is sent whole.
            whole: Whether to send it whole in any case.
            take_over: Whether to push to a URL whose newest checkpoint is of another store.
            options: fsspec's options for the filesystem, a dict.
            jobs: How many files to transfer at a time.
            progress: ``fn(done, total)``, called with bytes.

        Returns:
            What was sent.

        Raises:
            CheckpointNotFound: The series has no such checkpoint.
            FileExistsError: The newest checkpoint at the URL is of another store, or another checkpoint has the number
                there; or the URL or the root is a store, a checkpoint or a cluster's.
            TransferError: The URL could not be read or written, for example because the bucket does not exist.
            Corruption: A local file is damaged, or with ``keep`` a description at the URL; the message names it.
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
        how = {"verify": bool(verify), "whole": bool(whole), "take_over": bool(take_over)}
        checkpoint = Checkpoint(self.path(number))
        done = remote.push(checkpoint, number, **how, jobs=jobs, progress=progress)
        if keep is not None:
            remote.prune(keep, inside(checkpoint).store, set(self.pinned))
        return done

    @described_as(push)
    def pull(
        self,
        url: str | os.PathLike[str],
        *,
        number: int | None = None,
        take_over: bool = False,
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
            take_over: Whether to pull into a series whose newest checkpoint is of another store.

        Returns:
            The checkpoint in the series.

        Raises:
            Locked: Another process writes to the series.
            CheckpointNotFound: There is no such checkpoint at the URL.
            TransferError: The URL could not be read.
            FileExistsError: The newest checkpoint of the series is of another store, or another checkpoint has the
                number there; or the root is a store or a checkpoint.
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
                raise FileExistsError(
                    f"{local.path} is not the same checkpoint as at {masked(url)}; pull into another root"
                )
            fresh_files.remove(self.root / layout.PULLED)  # left if the process of its pull was killed at the end
            return local
        if not take_over and self.numbers():
            self._check_owner(remote.store_of(number), f"checkpoint {series_name(number)} at {masked(url)}")
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

    def _hold(self) -> None:
        """Take the series' lock, and clear away what a crash left."""
        if self._lock is None or self._lock.closed:  # it is closed if this process was forked from the lock's owner
            paths.check_series_root(self.root)
            with layout.as_cold_store_error(f"write to {self.root}"):
                fresh_files.make_directory(self.root)
                self._lock = layout.lock(self.root, "the series {} is written to", "close it there")
            leftovers.clear(self.root)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def _check_owner(self, store: str, what: str) -> None:
        """Raise FileExistsError if the newest readable checkpoint of the series is of another store."""
        for number in reversed(self.numbers()):
            if (owner := self._store_of(number)) is not None:
                check_owner(owner, store, str(self.path(number)), what)
                return

    def _store_of(self, number: int) -> str | None:
        """Return the identity of a checkpoint's store; None if the manifest cannot be read."""
        if number not in self._stores:
            with suppress(CheckpointNotFound, Corruption, UnsupportedFormat):
                self._stores[number] = inside(Checkpoint(self.path(number))).store
        return self._stores.get(number)

    def _drop_old(self, store: str) -> None:
        """Delete the checkpoints of a store beyond `keep`; those of others, and those that cannot be read, stay."""
        if self.keep is None:
            return
        with uninterrupted(), self._dropping, layout.as_cold_store_error(f"delete old checkpoints of {self.root}"):
            pins = read_pins(self.root)
            own = [each for each in self.numbers() if each not in pins and self._store_of(each) == store]
            for number in own[: -self.keep]:
                hidden = self.root / layout.dropped_name(number)
                os.rename(self.path(number), hidden)
                fresh_files.remove(hidden)
