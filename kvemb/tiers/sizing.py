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
    host_tier = hot_rows is None and HOST not in memories
    if host_tier:
        devices, kinds, memories = (*devices, "cpu"), [*kinds, registry.hot_table("cpu")], [*memories, HOST]
    min_rows: int | None
    if hot_rows is not None:
        what, min_rows = "hot_rows of ", None
        fixed = [_whole_buckets(-(-hot_rows // len(devices)), kind) for kind in kinds]
        sizes = list(zip(fixed, fixed, strict=True))
    else:
        what = "init_size of " if init_size else ""
        sizes = _growing(schema, kinds, memories, init_size, budgets, limits, host_tier=host_tier)
        min_rows = min(limits.init_rows, *(first for first, _ in sizes))
    needed = dict.fromkeys(memories, 0)
    needed[HOST] = budgets.staging.reserve_bytes(schema, limits)
    for kind, memory, (first, _) in zip(kinds, memories, sizes, strict=True):
        needed[memory] += first * kind.bytes_per_cell(schema)
    with ExitStack() as undo:
        for memory, nbytes in needed.items():
            budgets.of(memory).reserve(nbytes, f"{what}variable {variable!r}", below_min=not init_size)
            undo.callback(budgets.of(memory).give_back, nbytes)
        tables = [
            kind(schema, first, most, limits, device)
            for kind, device, (first, most) in zip(kinds, devices, sizes, strict=True)
        ]
        undo.pop_all()
    on_gpu = any(table.device_rows is not None for table in tables)
    seen_as_one = TieredGpuTables if host_tier else GpuTables if on_gpu else HotTables
    partition = Partition(partitioner, schema.key_dtype, len(tables) - host_tier)
    return seen_as_one(tables, partition, [budgets.of(memory) for memory in memories], min_rows=min_rows)


def _growing(
    schema: Schema,
    kinds: list[type[HotTable]],
    memories: list[Memory],
    init_size: int,
    budgets: Budgets,
    limits: Limits,
    *,
    host_tier: bool,
) -> list[tuple[int, int]]:
    """Return the initial and the largest number of cells of each growing table. Tables in one memory share it.

    init_size: rows that the devices' tables have room for at first; 0: a default, which is smaller for a small budget.
    With host_tier, the last table, below them, always has the default.
    """
    wanted = -(-(init_size or limits.init_rows) // (len(kinds) - host_tier))
    sizes = []
    for number, (kind, memory) in enumerate(zip(kinds, memories, strict=True)):
        rows, cell_bytes = wanted, kind.bytes_per_cell(schema)
        below = host_tier and number == len(kinds) - 1
        if below or not init_size:
            copies = budgets.staging.reserve_bytes(schema, limits) if memory == HOST else 0
            free = max(0, budgets.of(memory).free - copies) // memories.count(memory)
            rows = min(limits.init_rows if below else wanted, free // (_FIRST_SHARE * cell_bytes))
        least, bucket = _whole_buckets(rows, kind), kind.cells_per_bucket
        most = max(least, budgets.for_cells(memory) // (bucket * cell_bytes) * bucket)
        sizes.append((kind.first_rows(least, most), most))
    return sizes


def _whole_buckets(rows: int, kind: type[HotTable]) -> int:
    """Return the number of cells of the buckets that hold `rows` rows."""
    return max(1, -(-rows // kind.cells_per_bucket)) * kind.cells_per_bucket
