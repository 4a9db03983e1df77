"""How much one internal step processes at a time: a frozen value that a store is opened with."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_ROWS


@dataclass(frozen=True)
class Limits:
    """Sizes that bound memory and pauses; results do not depend on them.

    call_rows: distinct keys that a call works on at a time; longer calls are processed in parts.
    init_rows: rows the hot tables of a variable hold at first, if neither init_size nor hot_rows is given.
    min_slot_rows, max_slot_rows: rows of a slot of the spill buffer. spill_rows: rows of all its slots.
    ahead_rows: rows that one read ahead brings. copied_rows: rows that are copied for a snapshot before callers wait.
    write_rows: dirty rows that one write to the cold store takes.
    snapshot_file_bytes: rows of a snapshot taken at a time: one sorted file each, whose writing is what callers may
    have to wait for.
    hot_parallel_keys: keys of a batch from which a hot table splits it over the cores; a hand-over costs about what
    1,000 keys do.
    cold_parallel_keys: keys of a batch from which a cold read is split; below it a second thread costs more than it
    gives.
    batch_rows: rows that one RocksDB write takes; rocksdict holds the GIL while it writes.
    crowded_files: files of RocksDB's level 0 beyond which a checkpoint waits; RocksDB slows writers down at 48.
    change_buffer_keys: changed keys of a variable in memory before they go to a key file. change_files: key files of a
    variable in one epoch before they become one.
    change_epochs, change_bytes: epochs, and bytes of their key files, that are remembered: older ones are forgotten
    beyond either; the last whole one is always kept.
    scan_rows: rows and keys that are read back at a time.
    sort_bytes: rows that a load sorts in memory. table_file_bytes: rows of one file that a load writes.

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
    snapshot_file_bytes: int = 8 << 20
    hot_parallel_keys: int = 16_384
    cold_parallel_keys: int = 512
    batch_rows: int = 4096
    crowded_files: int = 40
    change_buffer_keys: int = 1 << 18
    change_files: int = 16
    change_epochs: int = 256
    change_bytes: int = 256 << 20
    scan_rows: int = 65_536
    sort_bytes: int = 64 << 20
    table_file_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = as_int(getattr(self, field.name), f"Limits {field.name}", 1, MAX_ROWS)
            object.__setattr__(self, field.name, value)


DEFAULT = Limits()
