"""The checkpoints of a cluster at a URL, or in a directory: one manifest each, and the files that shards pushed.

    URL/checkpoints/00000042.json     which checkpoint of each shard is in it, written last
    URL/shards/STORE/                 the series of one shard, named by the identity of its store (kvemb.offline.remote)

A checkpoint has the same number on all shards. Only one cluster may write to a URL. Not thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvemb import fresh_files
from kvemb.cluster.coordination import lease
from kvemb.cluster.coordination.lease import Lease
from kvemb.cluster.durability import manifest
from kvemb.cluster.durability.manifest import ClusterManifest
from kvemb.durability import layout, paths
from kvemb.durability.layout import series_name
from kvemb.durability.lock_file import LockFile
from kvemb.durability.manifest import MAX_CHARACTERS
from kvemb.errors import CheckpointNotFound, Corruption
from kvemb.masking import unsecret
from kvemb.offline import streams
from kvemb.offline.pushing import Pusher
from kvemb.offline.remote import CHECKPOINTS, SHARDS
from kvemb.offline.transfer import Remote


class Published(NamedTuple):
    """A checkpoint of a series: its number, and its manifest."""

    number: int
    described: ClusterManifest

    @property
    def rows(self) -> int:
        """The number of rows of all variables."""
        return sum(entry.rows for entry in self.described.variables.values())


class ClusterSeries(Pusher):
    """The checkpoints at a URL. options: of fsspec's filesystem. Raises as RemoteCheckpoints does."""

    def __init__(self, url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        super().__init__(url, options)
        # A shard may be a process on another machine.
        self.url = self._root if "file" in self._files.protocol else paths.url_text(url)
        self.options = dict(options or {})

    @property
    def is_in_memory(self) -> bool:
        """Whether the URL is visible only to this process."""
        return "memory" in self._files.protocol

    def of_shard(self, store: str) -> Remote:
        """Return the series of a shard. store: the identity of its store."""
        return Remote(self.place_of_shard(store), self.options)

    def place_of_shard(self, store: str) -> str:
        """Return the URL or directory of that series."""
        return f"{self.url}/{SHARDS}/{store}"

    def lock(self) -> LockFile | Lease:
        """Lock the directory, or take the URL's lease. Raises Locked, ColdStoreError, TransferError."""
        self._check_destination()
        if self.numbers() and not self.is_of_cluster:
            raise FileExistsError(f"{self._url} has a single store's checkpoints; name another place for a cluster's")
        if "file" not in self._files.protocol:
            with self._translated("write to"):
                self._make_folder_of(f"{self._root}/{lease.NAME}")
                return Lease(self._files, f"{self._root}/{lease.NAME}", self._url)
        root = Path(self._root)
        if paths.series_numbers(root):
            raise FileExistsError(f"{root} is a series of a single store's checkpoints; name another directory")
        with layout.as_cold_store_error(f"write to {root}"):
            fresh_files.make_directory(root)
            return layout.lock(root, "the cluster at {} is open", "close it there")

    def check(self, lease: Lease) -> None:
        """Raise Locked if another cluster has the lease of the URL; TransferError."""
        with self._translated("read"):
            lease.check()

    def newest(self) -> Published | None:
        """Return the newest checkpoint, None if there is none. Raises as read does."""
        numbers = self.numbers()
        return Published(numbers[-1], self.read(numbers[-1])) if numbers else None

    def read(self, number: int) -> ClusterManifest:
        """Return a checkpoint. Raises CheckpointNotFound, Corruption, UnsupportedFormat, TransferError."""
        where = f"{self._url}/{CHECKPOINTS}/{series_name(number)}.json"
        with self._translated("read"):
            try:
                text = streams.read(self._files, self._manifest_at(number), 4 * MAX_CHARACTERS).decode()
            except FileNotFoundError as error:
                self._check_bucket()
                text = f"there is no checkpoint {series_name(number)} at {self._url}"
                raise CheckpointNotFound(text) from unsecret(error)
            except UnicodeDecodeError as error:
                raise Corruption(f"{where} is damaged: {error!r}; use another checkpoint") from error
        return manifest.parse(text, where)

    def next_number(self) -> int:
        """Return a number used by no checkpoint, complete or not."""
        numbers = self.numbers()
        for store in self._stores():
            numbers += self.of_shard(store).numbers()
        return max(numbers, default=0) + 1

    def publish(self, number: int, described: ClusterManifest) -> None:
        """Make a checkpoint complete. REQUIRES: its shards have pushed theirs. Raises TransferError."""
        self._check_destination()
        with self._translated("write to", resumable=True):
            self._publish(number, manifest.text_of(described))

    def keep_newest(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints, then the shards' files that none of those needs.

        REQUIRES: no shard pushes at the same time. Raises TransferError.
        """
        numbers = self.numbers()
        kept = {number: self.read(number) for number in numbers[-keep:]}
        with self._translated("delete from"):
            for number in numbers[:-keep]:
                self._files.rm_file(self._manifest_at(number))
        first = {shard.store: number for number, each in sorted(kept.items(), reverse=True) for shard in each.shards}
        for store in self._stores():
            if store in first:
                of_shard = self.of_shard(store)
                of_shard.prune(sum(number >= first[store] for number in of_shard.numbers()), store)
            else:
                with self._translated("delete from"):
                    self._files.rm(f"{self._root}/{SHARDS}/{store}", recursive=True)

    def _stores(self) -> list[str]:
        """Return the store identities of all shards that pushed anything here."""
        with self._translated("list"):
            found = self._found(SHARDS)
        begin = len(f"{self._root}/{SHARDS}/".lstrip("/"))
        return sorted({path.lstrip("/")[begin:].partition("/")[0] for path in found})
