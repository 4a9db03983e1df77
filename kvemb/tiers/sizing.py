"""Reserving memory for a variable from the budgets, and making its hot tables.

The budget of a memory pays for the cells in it. The host's budget also pays for the rows that a snapshot may always
copy.
"""

from __future__ import annotations

from contextlib import ExitStack

from kvemb import registry
from kvemb.contracts import HOST, HotTable, Memory
from kvemb.limits import Limits
from kvemb.memory.budgets import Budgets
from kvemb.rows.schema import Schema
from kvemb.tiers.gpu_tables import GpuTables, TieredGpuTables
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import Partition, Partitioner

# A table begins with at most 1/_FIRST_SHARE of the free memory, and may shrink to that.
_FIRST_SHARE = 256


def make_tables(
    variable: str,
    schema: Schema,
    devices: tuple[str, ...],
    partitioner: Partitioner,
    init_size: int,
    hot_rows: int | None,
    budgets: Budgets,
    limits: Limits,
) -> HotTables:
    """Reserve memory for a variable and make its hot tables, one per device.

    hot_rows: the total number of cells, reserved at once. None: tables have cells for init_size rows at first (0: a
    default), and grow as far as the budgets ever allow; if all of them are in devices' memories, there is a table in
    the host's memory below them. Raises ValueError if a budget is too small for what was asked for, BackendUnavailable
    for a device. After any error nothing is reserved.
    """
    kinds = [registry.hot_table(device) for device in devices]
    memories = [kind.memory(device) for kind, device in zip(kinds, devices, strict=True)]
    copies = budgets.staging.reserve_bytes(schema, limits)
    host_tier = hot_rows is None and HOST not in memories
    if host_tier:
        devices, kinds, memories = (*devices, "cpu"), [*kinds, registry.hot_table("cpu")], [*memories, HOST]
    if hot_rows is not None:
        what, wanted = "hot_rows of ", -(-hot_rows // len(devices))
        first = most = [_buckets(wanted, kind) for kind in kinds]
        min_rows = None
    else:
        what = "init_size of " if init_size else ""
        sizes = _growing(schema, kinds, memories, init_size, copies, budgets, limits, host_tier=host_tier)
        first, most = [begin for begin, _ in sizes], [limit for _, limit in sizes]
        min_rows = min(
            limits.init_rows, *(count * kind.cells_per_bucket for count, kind in zip(first, kinds, strict=True))
        )
    with ExitStack() as undo:
        paying = [budgets.of(memory) for memory in memories]
        needed = [count * _bucket_bytes(kind, schema) for count, kind in zip(first, kinds, strict=True)]
        for memory in dict.fromkeys([HOST, *memories]):
            nbytes = sum(size for size, used in zip(needed, memories, strict=True) if used == memory)
            nbytes += copies if memory == HOST else 0
            budgets.of(memory).reserve(nbytes, f"{what}variable {variable!r}", below_min=not init_size)
            undo.callback(budgets.of(memory).give_back, nbytes)
        tables = [
            kind(schema, start * kind.cells_per_bucket, limit * kind.cells_per_bucket, limits, device)
            for kind, start, limit, device in zip(kinds, first, most, devices, strict=True)
        ]
        undo.pop_all()
    on_gpu = any(table.device_rows is not None for table in tables)
    seen_as_one = TieredGpuTables if host_tier else GpuTables if on_gpu else HotTables
    partition = Partition(partitioner, schema.key_dtype, len(tables) - host_tier)
    return seen_as_one(tables, partition, paying, min_rows=min_rows)


def _growing(
    schema: Schema,
    kinds: list[type[HotTable]],
    memories: list[Memory],
    init_size: int,
    copies: int,
    budgets: Budgets,
    limits: Limits,
    *,
    host_tier: bool,
) -> list[tuple[int, int]]:
    """Return the initial and the largest number of buckets of each growing table. Tables in one memory share it.

    init_size: rows that the devices' tables have room for at first; 0: a default, which is smaller for a small budget.
    copies: bytes of the host's budget for a snapshot's copies.
    With host_tier, the last table, below them, always has the default.
    """
    wanted = -(-(init_size or limits.init_rows) // (len(kinds) - host_tier))
    sizes = []
    for number, (kind, memory) in enumerate(zip(kinds, memories, strict=True)):
        sharing = memories.count(memory)
        free = max(0, budgets.of(memory).free - (copies if memory == HOST else 0)) // sharing
        below = host_tier and number == len(kinds) - 1
        rows = wanted
        if below or not init_size:
            affordable = free // (_FIRST_SHARE * kind.bytes_per_cell(schema))
            rows = min(limits.init_rows if below else wanted, affordable)
        sizes.append(_sizes(kind, schema, rows, budgets.for_cells(memory)))
    return sizes


def _sizes(kind: type[HotTable], schema: Schema, rows: int, most_bytes: int) -> tuple[int, int]:
    """Return the number of buckets that one device's table has at first, for `rows` rows, and at most."""
    least = _buckets(rows, kind)
    limit, cells = max(least, most_bytes // _bucket_bytes(kind, schema)), kind.cells_per_bucket
    return kind.first_rows(least * cells, limit * cells) // cells, limit


def _bucket_bytes(kind: type[HotTable], schema: Schema) -> int:
    return kind.cells_per_bucket * kind.bytes_per_cell(schema)


def _buckets(rows: int, kind: type[HotTable]) -> int:
    """Return the number of buckets that hold `rows` rows."""
    return max(1, -(-rows // kind.cells_per_bucket))
