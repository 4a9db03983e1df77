"""Places of checkpoints: on this machine, pushed to a directory or a URL, or of a cluster.

A place is a checkpoint; a store, which is read as of its last durable point; or a series, whose newest checkpoint is
read, unless SERIES/00000042 names another one. A series is local (kvemb.CheckpointManager), or was pushed to a
directory or a URL, or has the checkpoints of a cluster. A checkpoint that is not local is pulled to a scratch folder
before its rows are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from kvemb import registry
from kvemb.durability import layout, paths
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.layout import series_name
from kvemb.durability.marks.space import marks_with_bytes
from kvemb.durability.scratch import scratch
from kvemb.errors import CheckpointNotFound
from kvemb.handle import inside
from kvemb.masking import masked
from kvemb.offline.remote import CheckpointDescription, description_of
from kvemb.offline.remote_checking import is_pushed
from kvemb.offline.transfer import PULLING, Pulling, Remote
from kvemb.progress import Progress

# The largest number of checkpoints that a message lists.
_MAX_LISTED = 10
_NUMBERED = re.compile(r"(.*[^/])/+([0-9]{8,18})/*", re.DOTALL)


class Source(Protocol):
    """A series from which checkpoints are pulled: kvemb.offline.transfer.Remote, or that of a cluster."""

    def numbers(self) -> list[int]:
        """The numbers of its checkpoints, ascending. Raises TransferError."""

    def id_of(self, number: int) -> str:
        """The id of a checkpoint. Raises CheckpointNotFound, Corruption, TransferError."""

    def store_of(self, number: int) -> str:
        """The identity of the store, or the cluster, of a checkpoint. Raises as id_of does."""

    def described(self, number: int) -> CheckpointDescription:
        """Return the description of a checkpoint. Raises as id_of does."""

    def pull(
        self, number: int, target: Path, have: Iterable[Checkpoint], received: Path, how: Pulling = PULLING
    ) -> None:
        """Copy a checkpoint to a new local directory: Remote.pull."""


def source_at(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Source:
    """Return the series at a URL or in a directory: a pushed one, or a cluster's. options: fsspec's.

    Raises BackendUnavailable, TransferError, TypeError, ValueError.
    """
    remote = Remote(url, options)
    return cast(Source, registry.of_cluster("source")(url, options)) if remote.is_of_cluster else remote


def chosen(number: int | None, existing: list[int], where: str) -> int:
    """Return the number of an existing checkpoint; None: the newest. Raises CheckpointNotFound."""
    where = masked(where)
    if number is None and existing:
        return existing[-1]
    if not existing:
        raise CheckpointNotFound(f"there is no checkpoint in {where}")
    if number not in existing:
        known = ", ".join(map(str, existing[-_MAX_LISTED:]))
        known = f"{len(existing):,}, the newest {known}" if len(existing) > _MAX_LISTED else known
        raise CheckpointNotFound(f"there is no checkpoint {number} in {where}; it has {known}")
    return number


class Place:
    """Find a checkpoint or a store: at a local path, in a series, or at a URL.

    Args:
        given: A checkpoint; ``SERIES/00000042``; a series, whose newest checkpoint is meant; or a store, which is read
            as of its last durable point. A series may be local, at a URL, or of a cluster.
        options: fsspec's options for a URL's filesystem, a dict.
        what: The name of the argument in messages.

    Attributes:
        here: The local path, which may not exist. None: the checkpoint must be pulled.
        name: The checkpoint's name, beginning as it was given. At a URL with a password, it has the password.
        newest: Whether this is the newest checkpoint of a series that was given.

    Raises:
        CheckpointNotFound: The series has no such checkpoint.
        BackendUnavailable: fsspec, or what it needs for the URL, is not installed.
        TransferError: The URL could not be read.
        TypeError, ValueError: An argument is not valid.
    """

    def __init__(
        self, given: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, what: str = "path"
    ) -> None:
        self._source: Source | None = None
        self.here: Path | None = None
        self.newest: bool
        self.name: str
        root, number = divided(given, what)
        if is_elsewhere(root):
            self._source = source_at(root, options)
            self.newest = number is None
            self._number: int = chosen(number, self._source.numbers(), root)
            self.name = f"{paths.url_text(root)}/{series_name(self._number)}"
        else:
            paths.check_options(root, options)
            named = paths.local(given, what)
            self.here = paths.newest_of(named)
            self.newest = self.here != named
            self.name = str(Path(root, self.here.name) if self.newest else Path(root))

    def described(self) -> CheckpointDescription:
        """Read the description of the checkpoint or the store.

        Returns:
            The description, with ``variables``, ``files`` and more; its kind is "checkpoint" or "store".

        Raises:
            StoreNotFound: There is neither a checkpoint nor a store at the path.
            Corruption: The description is damaged.
            UnsupportedFormat: It was written by a kvemb with another format.
            TransferError: The URL could not be read.
        """
        if self._source is not None:
            return self._source.described(self._number)
        assert self.here is not None
        found = inside(Checkpoint.at(self.here))
        nbytes = {name: entry.bytes for name, entry in found.files.items()}
        if layout.is_checkpoint(self.here):
            return description_of("checkpoint", found, nbytes)
        return replace(description_of("store", found, nbytes), marks=marks_with_bytes(self.here, found))

    @contextmanager
    def readable(
        self,
        *,
        have: Iterable[Checkpoint] = (),
        within: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Path]:
        """Make the checkpoint or the store readable at a local path inside a ``with`` block.

        A checkpoint that is not local is pulled to a scratch folder, and deleted afterwards.

        Args:
            have: Earlier local checkpoints. Only what changed since is transferred, and the pulled checkpoint records
                it.
            within: The parent of the scratch folder. None: the system's temporary directory.
            progress: ``fn(done, total)``, called with bytes transferred; then, for a cluster, with rows.

        Yields:
            The local path.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
            TransferError: The URL could not be read.
            Corruption: A file at the URL is damaged.
            ColdStoreError: The disk could not be written.
        """
        if self._source is None:
            assert self.here is not None
            yield self.here
            return
        with scratch(".kvemb-pull-", within) as folder:
            target = folder / series_name(self._number)
            self._source.pull(self._number, target, have, folder / layout.PULLED, Pulling(progress=progress))
            yield target


def divided(given: str | os.PathLike[str], what: str = "path") -> tuple[str, int | None]:
    """Split a place into the series and the number of the checkpoint to pull; the number is None if there is none.

    what: its name in errors. Raises TypeError, ValueError.
    """
    root = paths.text_of(given, what)
    numbered = None if not paths.is_url(root) and os.path.exists(root) else _NUMBERED.fullmatch(root)
    if numbered is not None and is_elsewhere(numbered[1]):
        return numbered[1], int(numbered[2])
    return root, None


def is_elsewhere(root: str) -> bool:
    """Whether checkpoints must be pulled from there: it is a URL, or a directory to which they were pushed."""
    return paths.is_url(root) or is_pushed(Path(root)) or paths.is_cluster_series(Path(root))
