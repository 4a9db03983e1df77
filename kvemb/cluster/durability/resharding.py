"""Rewrites a checkpoint of a cluster for another number of shards, without opening the cluster.

Each old shard is read once. Its rows are written to sorted runs on disk, one for each new shard. When a new shard has
all its rows, its checkpoint is written from the runs, and pushed. The next old shard is pulled, and new shards are
written, in the background. Memory does not grow with the table.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvemb import fresh_files
from kvemb.checks.numeric import as_int
from kvemb.cluster.durability.cluster_series import ClusterSeries, Published
from kvemb.cluster.durability.folders import new_folder
from kvemb.cluster.durability.gathering import write_part
from kvemb.cluster.durability.manifest import ShardEntry, ranges
from kvemb.cluster.durability.offline import found
from kvemb.cluster.durability.restoring import ClusterRemote
from kvemb.cluster.durability.shard_changes import ShardPart
from kvemb.cluster.router import BUCKETS, Router
from kvemb.durability import layout, paths
from kvemb.durability.manifest import created_now
from kvemb.durability.readable import opened
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.offline.sorter import Sorter
from kvemb.progress import Meter, Progress
from kvemb.threads.interrupts import result_of
from kvemb.threads.pool import Threads

# Bounds of rows in memory: those being sorted for all new shards, those of the merged runs of a shard, and those read
# at a time.
SIZES = Limits(sort_bytes=16 << 20, scan_rows=16_384)


def reshard(
    url: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shards: int,
    number: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    limits: Limits = SIZES,
) -> int:
    """Rewrite a checkpoint of a cluster for another number of shards, without opening the cluster.

    The result is the next checkpoint at ``out``. Each old shard is read once. The rows in memory do not grow with the
    table.

    Args:
        url: Where the cluster's checkpoints are: a directory or a URL.
        out: Where the new checkpoint is published. It may be ``url``.
        shards: The new number of shards, from 1 to 4,096.
        number: The number of the checkpoint to rewrite. None: the newest.
        scratch: A directory with room for two old shards, and twice the new shards that share rows with one of them.
            None: the system's temporary directory.
        options: fsspec's options for the filesystem of both, a dict.
        progress: ``fn(done, total)``, called with rows.
        limits: Its ``sort_bytes`` and ``scan_rows`` bound the rows in memory (``kvemb.limits.Limits``).

    Returns:
        The number of the new checkpoint.

    Raises:
        Locked: A cluster has the directory ``out`` open.
        CheckpointNotFound: There is no such checkpoint.
        TransferError: A url could not be read or written to.
        Corruption: Bytes differ from what was written.
        ColdStoreError: ``scratch`` cannot be written to.
        TypeError, ValueError: An argument is not valid.

    Example:
        >>> import kvemb.cluster
        >>> with kvemb.cluster.open("series", shards=2, transport="local") as cluster:
        ...     items = cluster.get_variable("items", dim=8)
        ...     items.upsert([1, 2], np.ones((2, 8), np.float32))
        >>> number = kvemb.cluster.reshard("series", "series", shards=3)
        >>> len(kvemb.cluster.latest("series", number=number)[1].shards)
        3
    """
    count = as_int(shards, "shards", 1, BUCKETS)
    source, target = ClusterRemote(url, options), ClusterSeries(out, options)
    wanted = found(source, number)
    root = Path(tempfile.gettempdir()) if scratch is None else paths.local(scratch, "scratch")
    with ExitStack() as undo:
        undo.callback(target.lock().close)
        folder = new_folder(root, "kvemb-reshard-", undo)
        described = replace(wanted.described, id=uuid.uuid4().hex, created=created_now(), shards=(), follows=())
        work = _Resharding(source, wanted, target, Published(target.next_number(), described), folder, limits)
        entries = work.written(ranges(count), Meter(wanted.rows, progress))
        target.publish(work.new.number, replace(described, shards=tuple(entries)))
        return work.new.number


class _Resharding:
    """The rewriting of one checkpoint in another series. new: without shards. folder: for files."""

    def __init__(
        self, source: ClusterRemote, old: Published, target: ClusterSeries, new: Published, folder: Path, limits: Limits
    ) -> None:
        self._source, self._old, self._target, self.new = source, old, target, new
        self._folder, self._limits = folder, limits

    def written(self, ranges: list[tuple[int, int]], meter: Meter) -> list[ShardEntry]:
        """Write and push the new shards, which have these buckets."""
        count, router = len(ranges), Router(len(ranges))
        sorters = {at: self._sorters(at, count) for at in range(count)}
        shards, parts, waiting = self._old.described.shards, list[ShardPart](), list[Future[ShardEntry]]()

        def write(at: int, rows: dict[str, Sorter], old: list[ShardPart]) -> ShardEntry:
            target = self._folder / f"checkpoint-{at}"
            made = write_part(old, self.new.described, ranges[at], lambda name: rows[name].blocks(), target, meter)
            store = inside(made).store
            self._target.of_shard(store).push(made, self.new.number)
            for left in (target, self._folder / f"runs-{at}"):
                fresh_files.remove(left)
            return ShardEntry(*ranges[at], store)

        with Threads(1) as pulling, Threads(1) as writing:
            coming = pulling.submit(self._pulled, shards[0])
            for at, shard in enumerate(shards):
                part, before = result_of(coming), len(waiting)
                if at + 1 < len(shards):
                    coming = pulling.submit(self._pulled, shards[at + 1])
                self._divide(part, router, sorters)
                fresh_files.remove(part.path / layout.ROWS)  # the small files are needed until new shards are written
                parts.append(part)
                for done in waiting[:before]:  # so that the disk holds the rows of few shards at a time
                    result_of(done)
                for new, (first, last) in enumerate(ranges[before:], start=before):
                    if last <= shard.last:
                        old = [part for part in parts if part.shard.last >= first and part.shard.first <= last]
                        waiting.append(writing.submit(write, new, sorters.pop(new), old))
            return [result_of(done) for done in waiting]

    def _sorters(self, number: int, shards: int) -> dict[str, Sorter]:
        """Return a sorter of each variable's rows for a new shard."""
        made, variables = {}, self._old.described.variables
        each = max(1, self._limits.sort_bytes // shards // max(1, len(variables)))
        for at, (name, entry) in enumerate(variables.items()):
            folder = self._folder / f"runs-{number}" / str(at)
            with layout.as_cold_store_error(f"write to {folder}"):
                folder.mkdir(parents=True)
            made[name] = Sorter(entry.schema, folder, replace(self._limits, sort_bytes=each))
        return made

    def _pulled(self, shard: ShardEntry) -> ShardPart:
        (part,) = self._source.pulled(self._old, [shard], self._folder / "old")
        return part

    def _divide(self, part: ShardPart, router: Router, sorters: dict[int, dict[str, Sorter]]) -> None:
        """Read an old shard, and add its rows to those of the new ones."""
        with opened(part.path, part.described) as source:
            for name in self._old.described.variables:
                cold = source.rows(name)
                assert cold is not None
                for block in cold.scan(self._limits.scan_rows):
                    split = router.split(block.keys)
                    rows = block.select(split.order)
                    for shard, where in split.parts:
                        sorters[shard][name].add(rows.part(where.start, where.stop))
