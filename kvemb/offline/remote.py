"""A URL where checkpoints are: how it is reached, what is there, and what its errors become (FORMAT.md, "Remote").

    URL/checkpoints/00000042.json    a checkpoint's manifest.json, put there last: with it the checkpoint is there
    URL/files/3f/3fa9...             a file by the sha256 of its content, shared by the checkpoints that name it

Looks only; kvemb.offline.transfer moves. Not thread-safe, but for reading and writing several files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvemb.durability import manifest, paths
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import Manifest
from kvemb.errors import BackendUnavailable, CheckpointNotFound, Corruption, KvembError, TransferError
from kvemb.offline import streams

CHECKPOINTS, FILES = "checkpoints", "files"
# Of fsspec's filesystems, those whose names are flat, below buckets.
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "obs", "oci", "cos", "tos"})
MOST_MANIFEST_BYTES = 4 * manifest.MOST_CHARACTERS
_MANIFEST = re.compile(rf"(?:.*/)?{CHECKPOINTS}/([0-9]{{8,18}})\.json")


class RemotePlace:
    """Checkpoints at a URL. options: for fsspec's filesystem: credentials, an endpoint.

    Raises BackendUnavailable; TypeError or ValueError where that is no URL and no path.
    """

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        self._url = url = paths.place(url)
        try:
            import fsspec
        except ImportError as error:
            raise BackendUnavailable(
                f"{url} cannot be reached: {error}; install: pip install 'kvemb[remote]'"
            ) from error
        try:
            with self._translated("reach"):
                # An instance of its own: what it has listed is nobody else's.
                self._files, self._root = fsspec.core.url_to_fs(self._url, skip_instance_cache=True, **(options or {}))
        except ImportError as error:  # fsspec says which package knows this protocol
            raise BackendUnavailable(f"{url} cannot be reached: {error}") from error
        scheme, told, rest = url.partition("://")
        if told and self._files.root_marker != "/" and (not rest or rest.startswith("/")):
            raise ValueError(f"url {url!r} names no bucket, or host; write {scheme}://NAME, or {scheme}://NAME/FOLDER")
        # In the others to make a folder would make the bucket.
        self._has_folders = BUCKETS.isdisjoint(_protocols(self._files))

    @contextmanager
    def _translated(self, what: str, *, resumable: bool = False) -> Iterator[None]:
        """Turn what filesystems raise, which is anything, into TransferError. resumable: files move meanwhile."""
        try:
            yield
        except (KvembError, ImportError):
            raise
        except Exception as error:
            advice = "; what was moved stays: call again to go on" if resumable else ""
            raise TransferError(f"cannot {what} {self._url}: {type(error).__name__}: {error}{advice}") from error

    def numbers(self) -> list[int]:
        """The numbers of the checkpoints that are there, ascending. Raises TransferError."""
        with self._translated("list"):
            self._files.invalidate_cache()
            found = self._found(CHECKPOINTS)
            if not found:
                self._check_bucket()
        numbered = (_MANIFEST.fullmatch(path) for path in found)
        return sorted(int(each[1]) for each in numbered if each is not None)

    def id_of(self, number: int) -> str:
        """The id of a checkpoint that is there. Raises CheckpointNotFound, Corruption, TransferError."""
        return self._read(number)[1].id

    def _found(self, folder: str) -> dict[str, Any]:
        """The files of a folder with what is known of them; none where there is no folder."""
        try:
            found: dict[str, Any] = self._files.find(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return {}
        return found

    def _check_bucket(self) -> None:
        """Raise TransferError where the bucket of a URL is not there: nobody makes one by a slip."""
        bucket = self._root.partition("/")[0]
        if not self._has_folders and not self._files.exists(bucket):
            raise TransferError(
                f"there is no bucket {bucket!r}, which {self._url} names; make it first, or mend the URL"
            )

    def _manifest_at(self, number: int) -> str:
        return f"{self._root}/{CHECKPOINTS}/{series_name(number)}.json"

    def _file_at(self, sha256: str) -> str:
        return f"{self._root}/{FILES}/{sha256[:2]}/{sha256}"

    def _read(self, number: int) -> tuple[str, Manifest]:
        """Return a checkpoint's manifest, as text and read. Raises CheckpointNotFound, Corruption, TransferError."""
        where = f"{self._url}/{CHECKPOINTS}/{series_name(number)}.json"
        with self._translated("read"):
            try:
                text = streams.read(self._files, self._manifest_at(number), MOST_MANIFEST_BYTES + 1).decode()
            except FileNotFoundError as error:
                raise CheckpointNotFound(f"there is no checkpoint {series_name(number)} at {self._url}") from error
            except UnicodeDecodeError as error:
                raise Corruption(f"{where} is damaged: {error!r}; push it again") from error
        return text, manifest.parse(text, where)


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)
