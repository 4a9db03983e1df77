"""Makes a shard, wherever it runs: an empty store, or one with the rows of its buckets from a checkpoint."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvemb import opening
from kvemb.cluster.durability.cluster_series import Published
from kvemb.cluster.durability.manifest import ranges
from kvemb.cluster.durability.restoring import ClusterRemote, restored
from kvemb.cluster.durability.shard_checkpoints import ShardCheckpoints
from kvemb.cluster.ledger import StoredCalls
from kvemb.cluster.shard import Shard
from kvemb.engine.open_arguments import OpenArguments
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.handle import inside
from kvemb.progress import Meter


@dataclass(frozen=True)
class Plan:
    """The arguments for making a cluster's shards, the same for all. Plain values, which are sent to other machines.

    url, options: of the series; url None: there is none. checkpoint: the one to start from; None: the store is empty.
    how: arguments of kvemb.open.
    """

    shards: int
    url: str | None
    options: dict[str, Any]
    checkpoint: Published | None
    how: dict[str, Any]

    def make(self, number: int, folder: Path, meter: Meter) -> Shard:
        """Make a shard, with its files in a folder that it deletes when it is closed. meter: counts rows loaded.

        Raises what kvemb.open and kvemb.restore raise.
        """
        try:
            return self._made(number, folder, meter)
        except Poisoned as error:  # the disk failed, or was full, at its first durable point
            why = error.__cause__ or error
            text = f"shard {number} cannot be made: {why}; check that the disk of scratch works and has room"
            raise ColdStoreError(text) from error

    def _made(self, number: int, folder: Path, meter: Meter) -> Shard:
        calls, kept, how = StoredCalls(), folder / "checkpoints", OpenArguments(**self.how)
        series = None if self.url is None else ClusterRemote(self.url, self.options)
        if series is None or self.checkpoint is None:
            store = opening.open_at(folder / "store", how)
        else:
            calls, buckets = self.checkpoint.described.calls, ranges(self.shards)[number]
            store = restored(series, self.checkpoint, buckets, folder / "store", kept, meter, how)
        inside(store).shards = self.shards
        with ExitStack() as undo:
            undo.callback(store.close, flush=False)
            saved = None if series is None else ShardCheckpoints(store, series.of_shard(store.id), kept)
            shard = Shard(store, partial(shutil.rmtree, folder, ignore_errors=True), saved, calls)
            undo.pop_all()
        return shard
