"""The store of one shard, made from a checkpoint of a cluster that may have had other shards.

If the checkpoint has a shard with exactly these buckets, its store is restored. Otherwise the rows of these buckets
are read from the shards that have them, in key order, and loaded as finished files, in memory that does not grow with
the table. A single store is one shard with all buckets. Raises what kvemb.restore and kvemb.bulk.load raise.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kvemb import bulk, opening
from kvemb.cluster.durability.manifest import ClusterManifest, ShardEntry
from kvemb.cluster.durability.series import ClusterSeries
from kvemb.cluster.router import buckets_of
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.layout import series_name
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.meter import Meter
from kvemb.offline.loading import Loading
from kvemb.offline.merging import merged
from kvemb.options import MIN_BUDGET_BYTES
from kvemb.rows.block import RowBlock
from kvemb.store import Store
from kvemb.variable import Variable

# Rows read from a shard at a time.
BATCH_ROWS = 16_384
RECEIVED = "received"
# Calls that a checkpoint contains, by client: `answered`, then numbers (kvemb.cluster.ledger).
StoredCalls = dict[str, list[int]]


def restored(
    series: ClusterSeries,
    number: int,
    described: ClusterManifest,
    buckets: tuple[int, int],
    path: Path,
    scratch: Path,
    meter: Meter,
    **how: Any,
) -> tuple[Store, StoredCalls]:
    """Make and open the store at path with the rows of these buckets, first and last, as checkpoint `number` has them.

    Returns also the calls that made these rows. scratch: a folder for what is pulled. meter: counts rows. how:
    arguments of kvemb.open. If a shard has exactly these buckets, the pulled checkpoint stays in scratch, so that the
    next push shares its files.
    """
    sources = described.overlapping(*buckets)
    if len(sources) == 1 and (sources[0].first, sources[0].last) == buckets:
        checkpoint = pulled(series, number, sources[0], scratch)
        store = opening.restore(checkpoint, path, variables=sorted(described.variables), **how)
        meter(sum(checkpoint.variables[name].rows for name in described.variables))
        return store, made_on([checkpoint])
    store, checkpoints = opening.open(path, **how), []
    try:
        with ExitStack() as stack:
            opened = []
            for source in sources:
                folder = scratch / RECEIVED / source.store
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                checkpoints.append(pulled(series, number, source, folder))
                how_read: Any = {"memory_budget": MIN_BUDGET_BYTES, "read_only": True}
                reading = opening.open(checkpoints[-1], **how_read)
                stack.callback(reading.close)
                opened.append(reading)
            for name in sorted(described.variables):
                _gather(store, [each.variables[name] for each in opened], buckets, meter)
            for name, entry in described.variables.items():  # the steps of the whole table
                inside(store.variables[name]).storage.advance(entry.step, entry.optimizer_steps)
        store.close()
    except BaseException:
        store.close(flush=False)
        raise
    # Opened again: a variable with a user-defined policy must not be open without it.
    return opening.open(path, **how), made_on(checkpoints)


def made_on(checkpoints: list[Checkpoint]) -> StoredCalls:
    """Return the calls that were made on any of these shards: on one means on all, as a checkpoint has whole calls."""
    made: StoredCalls = {}
    for checkpoint in checkpoints:
        for client, (answered, *numbers) in checkpoint.extra.get("calls", {}).items():
            before, *known = made.get(client, [0])
            made[client] = [max(before, answered), *sorted({*known, *numbers})]
    return made


def pulled(series: ClusterSeries, number: int, shard: ShardEntry, folder: Path) -> Checkpoint:
    """Copy a shard's checkpoint to folder/NUMBER; returns it. Raises Corruption if it is not the one that belongs."""
    target = folder / series_name(number)
    series.of_shard(shard.store).pull(number, target, [], folder / "pulled")
    checkpoint = Checkpoint(target)
    if checkpoint.id != shard.id:
        raise Corruption(
            f"checkpoint {series_name(number)} of the shard {shard.store} at {series.url} is another one than its "
            "cluster's; use another checkpoint"
        )
    return checkpoint


def _gather(store: Store, sources: list[Variable], buckets: tuple[int, int], meter: Meter) -> None:
    """Load the rows of these buckets of a variable that is divided over several stores."""
    variable = bulk.make(store, sources[0].name, bulk.described(sources[0]))
    schema = inside(variable).schema

    def chosen(source: Variable) -> Iterator[RowBlock]:
        for block in inside(source).storage.scan(BATCH_ROWS):
            bucket = buckets_of(block.keys)
            yield block.select((bucket >= buckets[0]) & (bucket <= buckets[1]))

    with Loading(variable) as loading:
        for block in merged([chosen(source) for source in sources], schema, BATCH_ROWS):
            loading.add(block)
            meter(len(block))
        loading.finish()
    store.flush()
