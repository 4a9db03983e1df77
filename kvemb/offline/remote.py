"""Checkpoints at a URL, read-only: the connection, the listing, and the translation of errors (FORMAT.md, "Remote").

    URL/checkpoints/00000042.json    the description of a checkpoint, written last: the checkpoint exists once it does
    URL/files/3f/3fa9...             a file, named by the sha256 of its content, shared by the checkpoints that name it

kvemb.offline.transfer copies files. Not thread-safe, except for reading and writing different files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvemb.durability import manifest, paths
from kvemb.durability.admission_counters.counter_file import CountersSize, sizes_of
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import HotRows, Manifest
from kvemb.durability.marks.mark import Mark
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import BackendUnavailable, CheckpointNotFound, Corruption, KvembError, TransferError
from kvemb.installed import pip_install
from kvemb.masking import masked, unsecret
from kvemb.offline import chain, streams
from kvemb.offline.chain import PushedCheckpoint

CHECKPOINTS, FILES = "checkpoints", "files"
SHARDS = "shards"  # of a cluster's checkpoints: the series of each shard
# fsspec's protocols of object stores, which have buckets with flat names.
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "obs", "oci", "cos", "tos"})
_MANIFEST = re.compile(rf"(?:.*/)?{CHECKPOINTS}/([0-9]{{8,18}})\.json")


@dataclass(frozen=True)
class CheckpointDescription:
    """The description of a checkpoint, wherever it is. kind: "checkpoint", "store", or words for a cluster's.

    id, parent, created: as of a kvemb.Checkpoint. variables: by name. files: bytes of all files that it needs, by name.
    attached: bytes of the files saved with the rows, by name. extra: the values saved with the rows. tiers: as of a
    kvemb.Checkpoint; empty for a cluster. sightings: for each variable whose Admission counted any, of all shards.
    marks: those of a store, the oldest first, each with the bytes of files that it alone keeps.
    """

    kind: str
    id: str
    parent: str | None
    created: float
    variables: Mapping[str, VariableEntry]
    files: dict[str, int]
    attached: dict[str, int]
    extra: dict[str, Any]
    tiers: Mapping[str, Mapping[str, HotRows]] = field(default_factory=dict)
    sightings: Mapping[str, CountersSize] = field(default_factory=dict)
    marks: list[tuple[Mark, int]] = field(default_factory=list)


def description_of(kind: str, found: Manifest, files: Mapping[str, int]) -> CheckpointDescription:
    """Return the description of a checkpoint with this manifest, which needs these files."""
    return CheckpointDescription(
        kind,
        found.id,
        found.parent,
        found.created,
        found.variables,
        files=dict(sorted(files.items())),
        attached={name.partition("/")[2]: files[name] for name in sorted(found.attached)},
        extra=found.extra,
        tiers=found.tiers,
        sightings=sizes_of(found.sightings, files),
    )


class RemoteCheckpoints:
    """Checkpoints at a URL. options: of fsspec's filesystem, such as credentials. max_characters: of a manifest.

    Raises BackendUnavailable; TypeError or ValueError if url is neither a URL nor a path.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        *,
        max_characters: int = manifest.MAX_CHARACTERS,
    ) -> None:
        url = paths.url_text(url)
        self._url = shown = masked(url)
        paths.check_options(url, options)
        self._max_characters = max_characters
        try:
            import fsspec
        except ImportError as error:
            raise BackendUnavailable(f"{shown} cannot be reached: {error}; install: {pip_install('remote')}") from error
        try:
            with self._translated("reach"):
                # A separate instance, so that its listing cache is not shared.
                self._files, self._root = fsspec.core.url_to_fs(url, skip_instance_cache=True, **(options or {}))
        except ImportError as error:  # fsspec's message names the package for this protocol
            raise BackendUnavailable(f"{shown} cannot be reached: {masked(error)}") from unsecret(error)
        scheme, separator, rest = url.partition("://")
        if separator and self._files.root_marker != "/" and (not rest or rest.startswith("/")):
            raise ValueError(
                f"url {shown!r} names no bucket, or host; write {scheme}://NAME, or {scheme}://NAME/FOLDER"
            )
        # In an object store, creating a folder could create the bucket.
        self._has_folders = BUCKETS.isdisjoint(_protocols(self._files))

    @contextmanager
    def _translated(self, what: str, *, resumable: bool = False) -> Iterator[None]:
        """Translate a filesystem's exceptions of any type to TransferError. resumable: whether files are moved."""
        try:
            yield
        except (KvembError, ImportError):
            raise
        except Exception as error:
            advice = "; files already transferred are kept: call again to continue" if resumable else ""
            why = f"{type(error).__name__}: {masked(error)}{advice}"
            raise TransferError(f"cannot {what} {self._url}: {why}") from unsecret(error)

    def numbers(self) -> list[int]:
        """The numbers of the checkpoints at the URL, ascending. Raises TransferError."""
        with self._translated("list"):
            self._files.invalidate_cache()
            found = self._found(CHECKPOINTS)
            if not found:
                self._check_bucket()
        numbered = (_MANIFEST.fullmatch(path) for path in found)
        return sorted(int(each[1]) for each in numbered if each is not None)

    def id_of(self, number: int) -> str:
        """The id of a checkpoint at the URL. Raises CheckpointNotFound, Corruption, TransferError."""
        return self._read(number)[1].described.id

    def store_of(self, number: int) -> str:
        """The identity of the store of a checkpoint at the URL. Raises as id_of does."""
        return self._read(number)[1].described.store

    def nbytes(self, number: int) -> int:
        """The bytes of all files that a checkpoint at the URL needs. Raises as id_of does."""
        return sum(entry.bytes for entry in self._read(number)[1].files.values())

    def described(self, number: int) -> CheckpointDescription:
        """The description of a checkpoint at the URL. Raises as id_of does."""
        pushed = self._read(number)[1]
        found = pushed.described
        files = {name: entry.bytes for name, entry in found.files.items()}
        files |= {f"the delta of checkpoint {series_name(delta.number)}": delta.bytes for delta in pushed.deltas}
        return description_of("checkpoint", found, files)

    @property
    def is_of_cluster(self) -> bool:
        """Whether a cluster writes its checkpoints to the URL (kvemb.cluster). Raises TransferError."""
        with self._translated("list"):
            return bool(self._files.isdir(f"{self._root}/{SHARDS}"))

    def _found(self, folder: str) -> dict[str, Any]:
        """Return the files of a folder by path, with their metadata; an empty dict if there is no folder."""
        try:
            found: dict[str, Any] = self._files.find(f"{self._root}/{folder}", detail=True)
            if not found:
                self._files.ls(f"{self._root}/{folder}")  # find() of some protocols passes over a host that is away
        except FileNotFoundError:
            return {}
        return found

    def _check_bucket(self) -> None:
        """Raise TransferError if the bucket does not exist; kvemb does not create buckets."""
        bucket = self._root.partition("/")[0]
        if not self._has_folders and not self._files.exists(bucket):
            raise TransferError(f"the bucket {bucket!r} of {self._url} does not exist; create it, or correct the URL")

    def _manifest_at(self, number: int) -> str:
        return f"{self._root}/{CHECKPOINTS}/{series_name(number)}.json"

    def _file_at(self, sha256: str) -> str:
        return f"{self._root}/{FILES}/{sha256[:2]}/{sha256}"

    def _read(self, number: int) -> tuple[str, PushedCheckpoint]:
        """Return a description, as text and parsed. Raises CheckpointNotFound, Corruption, TransferError."""
        where = f"{self._url}/{CHECKPOINTS}/{series_name(number)}.json"
        with self._translated("read"):
            try:
                most = 4 * self._max_characters + 1  # bytes of UTF-8
                text = streams.read(self._files, self._manifest_at(number), most).decode()
            except FileNotFoundError as error:
                self._check_bucket()
                text = f"there is no checkpoint {series_name(number)} at {self._url}"
                raise CheckpointNotFound(text) from unsecret(error)
            except UnicodeDecodeError as error:
                raise Corruption(f"{where} is damaged: {error!r}; push it again") from error
        return text, chain.parse(text, where, max_characters=self._max_characters)


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)
