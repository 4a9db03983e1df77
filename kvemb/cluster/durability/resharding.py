"""Rewrites a checkpoint of a cluster for another number of shards, without opening the cluster.

Each old shard is read once. Its rows are written to sorted runs on disk, one for each new shard. When a new shard has
all its rows, its store is loaded from the runs, and pushed. The next old shard is pulled, and new shards are loaded, in
the background. Memory does not grow with the table.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvemb import bulk, opening
from kvemb.checks.numeric import as_int
from kvemb.cluster.durability.epochs import ShardPart
from kvemb.cluster.durability.manifest import ShardEntry, id_of_part, ranges
from kvemb.cluster.durability.offline import found
from kvemb.cluster.durability.restoring import ClusterRemote
from kvemb.cluster.durability.series import ClusterSeries, Published
from kvemb.cluster.durability.sightings import join_sightings, stored_by
from kvemb.cluster.router import BUCKETS, Router
from kvemb.durability import fresh_files, layout, paths
from kvemb.durability.attachments import Attachments
from kvemb.durability.layout import series_name
from kvemb.durability.sightings.point_files import Stored
from kvemb.engine.admitting import adopt_sightings
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.offline.loading import BulkLoader
from kvemb.offline.sorter import Sorter
from kvemb.options import MIN_BUDGET_BYTES
from kvemb.progress import Meter, Progress
from kvemb.store import Store
from kvemb.threads.interrupts import result_of
from kvemb.threads.pool import Threads

# The memory budget of a new shard's store; rows do not pass through its hot tier.
BUDGET = "32MiB"
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
    root = Path(tempfile.gettempdir()) if scratch is None else paths.local(scratch, "scratch").absolute()
    with ExitStack() as undo:
        if (lock := target.lock()) is not None:
            undo.callback(lock.close)
        with layout.as_cold_store_error(f"write to {root}"):
            fresh_files.make_directory(root)
            folder = Path(tempfile.mkdtemp(prefix="kvemb-reshard-", dir=root))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        work = _Resharding(source, wanted, target, folder, Meter(wanted.rows, progress), limits)
        parts: dict[str, Any] = {"shards": tuple(work.divided(count)), "follows": ()}
        target.publish(work.number, replace(wanted.described, id=work.id, created=time.time(), **parts))
        return work.number


class _NewShard:
    """The rows of a new shard, in sorted runs, one Sorter for each variable. buckets: its first and its last.

    made: the old shards that have these buckets. counted: their counter files.
    """

    def __init__(self, folder: Path, buckets: tuple[int, int], limits: Limits) -> None:
        self.folder, self.buckets = folder, buckets
        self.made: list[ShardPart] = []
        self.counted: list[Stored] = []
        self._limits = limits
        self._sorters: dict[str, Sorter] = {}

    def sorter(self, name: str, source: Store) -> Sorter:
        """Return the sorter of a variable."""
        if name not in self._sorters:
            folder = self.folder / str(len(self._sorters))
            with layout.as_cold_store_error(f"write to {folder}"):
                fresh_files.make_directory(folder)
            self._sorters[name] = Sorter(inside(source.variables[name]).schema, folder, self._limits)
        return self._sorters[name]

    def add_shard(self, old: ShardPart) -> None:
        """Record an old shard that has some of the buckets, and keep its counter files, which are deleted with it."""
        kept = self.folder / f"counted-{len(self.made)}"
        with layout.as_cold_store_error(f"write to {kept}"):
            fresh_files.make_directory(kept)
            for source, counted in (files := stored_by(old)).values():
                fresh_files.link_or_copy(source / counted.file, kept / counted.file)
        self.made.append(old)
        self.counted.append({name: (kept, counted) for name, (_, counted) in files.items()})

    def load(self, store: Store, like: Mapping[str, Mapping[str, Any]], meter: Meter) -> None:
        """Load all rows into an empty store. like: bulk.described() of each variable."""
        for name, described in like.items():
            variable = bulk.make(store, name, described)
            if name not in self._sorters:
                continue
            with BulkLoader(variable) as loading:
                for block in self._sorters[name].blocks():
                    loading.add(block)
                    meter(len(block))
                loading.finish()


class _Resharding:
    """The rewriting of one checkpoint in another series. folder: for files. meter: counts rows.

    number, id: of the new checkpoint.
    """

    def __init__(
        self,
        source: ClusterRemote,
        old: Published,
        target: ClusterSeries,
        folder: Path,
        meter: Meter,
        limits: Limits,
    ) -> None:
        self._source, self._old, self._target, self._limits = source, old, target, limits
        self._described = old.described
        self.number, self.id, self._folder, self._meter = target.next_number(), uuid.uuid4().hex, folder, meter
        self._like: dict[str, dict[str, Any]] = {}

    def divided(self, count: int) -> list[ShardEntry]:
        """Write the new shards."""
        router, waiting, old = Router(count), list[Future[ShardEntry]](), self._described.shards
        each = max(1, self._limits.sort_bytes // count // max(1, len(self._described.variables)))
        limits = replace(self._limits, sort_bytes=each)
        parts = [_NewShard(self._folder / f"new-{at}", range, limits) for at, range in enumerate(ranges(count))]
        with Threads(1) as pulling, Threads(1) as loading:
            coming = pulling.submit(self._pulled, old[0])
            for at, shard in enumerate(old):
                part, before = result_of(coming), len(waiting)
                if at + 1 < len(old):
                    coming = pulling.submit(self._pulled, old[at + 1])
                if at == 0:
                    self._keep_attached(part)
                self._divide(part, router, parts)
                shutil.rmtree(part.path)
                for done in waiting[:before]:  # so that the disk holds the rows of few shards at a time
                    result_of(done)
                ready = [part for part in parts[before:] if part.buckets[1] <= shard.last]
                waiting += [loading.submit(self._loaded, part) for part in ready]
            return [result_of(done) for done in waiting]

    def _pulled(self, shard: ShardEntry) -> ShardPart:
        (part,) = self._source.pulled(self._old, [shard], self._folder / "old")
        return part

    def _keep_attached(self, first: ShardPart) -> None:
        """Keep the files that the first old shard saved beside the rows."""
        for name in first.described.attached:
            (self._folder / "attached").mkdir(exist_ok=True)
            fresh_files.link_or_copy(first.path / name, self._folder / "attached" / name.rpartition("/")[2])

    def _divide(self, part: ShardPart, router: Router, parts: list[_NewShard]) -> None:
        """Read an old shard, and add its rows to the new ones."""
        old = part.shard
        given: Any = {"memory_budget": MIN_BUDGET_BYTES, "read_only": True}
        with opening.open(part.path, **given) as store:
            for name in sorted(self._described.variables):
                self._like.setdefault(name, bulk.described(store.variables[name]))
                for block in inside(store.variables[name]).storage.scan(self._limits.scan_rows):
                    split = router.split(block.keys)
                    rows = block.select(split.order)
                    for shard, where in split.parts:
                        parts[shard].sorter(name, store).add(rows.part(where.start, where.stop))
        for new in parts:
            if new.buckets[0] <= old.last and new.buckets[1] >= old.first:
                new.add_shard(part)

    def _loaded(self, part: _NewShard) -> ShardEntry:
        """Make a new shard, and push it."""
        given: Any = {"memory_budget": BUDGET}
        store = opening.open(part.folder / "store", **given)
        try:
            part.load(store, self._like, self._meter)
            for name, entry in self._described.variables.items():  # those of the whole table
                inside(store.variables[name]).storage.advance(entry.step, entry.optimizer_steps)
            folder = part.folder / layout.SIGHTINGS
            for name, counted in join_sightings(part.counted, folder, self.number).items():
                adopt_sightings(inside(store), inside(store.variables[name]), folder, counted)
        except BaseException:
            store.close(flush=False)
            raise
        return self._pushed(store, part.buckets, part.folder)

    def _pushed(self, store: Store, buckets: tuple[int, int], folder: Path) -> ShardEntry:
        """Push a shard's store; closes it, and deletes its folder. The first shard gets the files beside the rows."""
        attached = self._folder / "attached"
        files = {path.name: path for path in attached.iterdir()} if buckets[0] == 0 and attached.is_dir() else {}
        try:
            given = Attachments(files, id=id_of_part(self.id, store.id), linked=True)
            checkpoint = inside(store).start(folder / series_name(self.number), attached=given).result()
            assert checkpoint is not None
            self._target.of_shard(store.id).push(checkpoint, self.number)
            return ShardEntry(*buckets, store.id)
        finally:
            store.close(flush=False)
            shutil.rmtree(folder, ignore_errors=True)
