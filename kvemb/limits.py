"""Limits: how much one internal step processes at a time. A frozen value, given when a store is opened."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_ROWS


@dataclass(frozen=True)
class Limits:
    """Sizes that bound memory and pauses; results do not depend on them.

    call_rows: distinct keys that a call processes at a time; longer calls are processed in parts.
    init_rows: the first capacity of a variable's hot tables, in rows, if neither init_size nor hot_rows is given.
    min_slot_rows, max_slot_rows: bounds of the rows in a slot of the spill buffer. spill_rows: rows of all its slots.
    ahead_rows: rows of one read ahead. copied_rows: rows that are copied for a snapshot before callers wait.
    write_rows: dirty rows in one write to the cold store.
    snapshot_part_bytes: bytes of a snapshot's rows that are taken at a time; callers may have to wait until that many
    are written.
    hot_parallel_keys: the smallest batch, in keys, that a hot table splits over the cores; passing work to a thread
    costs as much as about 1,000 keys.
    cold_parallel_keys: the smallest batch, in keys, whose cold read is split over threads; in smaller ones a second
    thread costs more than it saves.
    batch_rows: rows in one RocksDB write; rocksdict holds the GIL while it writes.
    crowded_files: number of files in RocksDB's level 0 above which a checkpoint waits; at 48 RocksDB slows writers
    down.
    change_buffer_keys: changed keys of all variables in memory; beyond it, those of the variable with the most go to a
    key file.
    change_files: key files of a variable in one epoch; beyond it, the older half are merged into one.
    change_epochs, change_bytes: epochs that are kept, and bytes of their key files; beyond either, the oldest epochs
    are dropped, but the last whole epoch is always kept. change_exact_epochs: the newest epochs, whose key files stay
    separate; all older epochs together have about change_old_files.
    scan_rows: rows and keys that are read back at a time.
    sort_bytes: bytes of rows that a load sorts in memory. table_file_bytes: bytes of rows in one file of a load or of a
    snapshot; files of a large snapshot are larger.

    Each is at least 1. Raises TypeError or ValueError.
    """

    call_rows: int = 65_536
    init_rows: int = 8192
    min_slot_rows: int = 64
    max_slot_rows: int = 4096
    spill_rows: int = 1 << 20
    ahead_rows: int = 32_768
    copied_rows: int = 65_536
    write_rows: int = 65_536
    snapshot_part_bytes: int = 8 << 20
    hot_parallel_keys: int = 16_384
    cold_parallel_keys: int = 512
    batch_rows: int = 4096
    crowded_files: int = 40
    change_buffer_keys: int = 1 << 19
    change_files: int = 16
    change_epochs: int = 256
    change_bytes: int = 256 << 20
    change_exact_epochs: int = 8
    change_old_files: int = 1024
    scan_rows: int = 65_536
    sort_bytes: int = 64 << 20
    table_file_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = as_int(getattr(self, field.name), f"Limits {field.name}", 1, MAX_ROWS)
            object.__setattr__(self, field.name, value)


DEFAULT = Limits()
