"""Checkpoints of a cluster: one cut through all shards, each of which pushes its own; then the manifest. Thread-safe.

The cut holds back calls while every shard takes its snapshot, in memory; what follows runs beside later calls.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from kvemb.cluster.calls import Calls
from kvemb.cluster.coordination.lease import Lease
from kvemb.cluster.durability.manifest import ClusterManifest, ShardEntry, joined, ranges
from kvemb.cluster.durability.series import ClusterSeries
from kvemb.cluster.messages import Pushed
from kvemb.durability.lock_file import LockFile
from kvemb.durability.manifest import VariableEntry


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a cluster that is complete. number: in its series. id: 32 hexadecimal digits.

    created: when the cut was made, in seconds since 1970. variables: by name, with the rows of all shards.
    nbytes: bytes sent to the URL for it. extra: what was saved beside the rows.
    """

    number: int
    id: str
    created: float
    variables: dict[str, VariableEntry]
    nbytes: int
    extra: dict[str, Any]


class Shards(Protocol):
    """What makes the cuts (kvemb.cluster.coordination.coordinator). calls: of the shards."""

    calls: Calls

    def alone(self) -> AbstractContextManager[None]:
        """Make a cut; the block is its work."""

    def steps(self) -> dict[str, tuple[int, int]]:
        """Return the steps of each open variable, by its token."""


class Checkpointing:
    """The series that one cluster writes. lock: of a directory, or the lease of a URL, held until close().

    last: the number of the checkpoint that it began with or wrote last, None for none.
    """

    def __init__(self, series: ClusterSeries, lock: LockFile | Lease) -> None:
        self.series = series
        self.last: int | None = None
        self._lock, self._saving = lock, threading.Lock()
        self._tried = 0  # the last number begun; shards have files of it even if it failed

    def save(self, shards: Shards, keep: int | None, extra: dict[str, Any]) -> Checkpoint:
        """Write the next checkpoint; see Store.checkpoint."""
        with self._saving:
            calls = shards.calls  # of these shards alone: a recovery makes others
            number = self._tried = max(self.series.next_number(), self._tried + 1)
            with shards.alone():
                created = time.time()
                calls.all_once("snapshot", number, shards.steps())
            parts: list[Pushed] = calls.all_once("push", number)
            buckets = ranges(len(parts))
            described = ClusterManifest(
                uuid.uuid4().hex,
                created,
                {name: joined([part.variables[name] for part in parts]) for name in parts[0].variables},
                tuple(ShardEntry(*range, part.store, part.id) for range, part in zip(buckets, parts, strict=True)),
                extra,
            )
            if isinstance(self._lock, Lease):
                self._lock.check()
            self.series.publish(number, described)
            self.last = number
            if keep is not None:
                self.series.keep_newest(keep)
            nbytes = sum(part.nbytes for part in parts)
            return Checkpoint(number, described.id, created, described.variables, nbytes, extra)

    def settled(self) -> tuple[int, ClusterManifest] | None:
        """Return the newest checkpoint, once the one that is being written is complete or has failed; None: no one."""
        with self._saving:
            newest = self.series.newest()
            self.last = newest[0] if newest else None
            return newest

    def close(self) -> None:
        """Release the directory or the URL. Idempotent."""
        self._lock.close()
