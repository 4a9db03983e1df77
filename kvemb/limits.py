"""Limits: how much one internal step processes at a time. A frozen value, given when a store is opened."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_ROWS


@dataclass(frozen=True)
class Limits:
    """Sizes that bound memory and pauses; results do not depend on them.

    Each is an int of at least 1.

    Args:
        call_rows: Distinct keys that a call processes at a time. Longer calls are processed in parts. Default: 65,536.
        init_rows: The first capacity of a variable's hot tables, in rows, if neither init_size nor hot_rows is given.
            Default: 8,192.
        min_own_copies: Rows of a variable that a snapshot may always copy, at least. Default: 64.
        max_own_copies: Rows of a variable that a snapshot may always copy, at most. Default: 4,096.
        memtable_rows: The most rows in a memtable. Default: 4,194,304.
        ahead_rows: Rows of one read ahead. Default: 32,768.
        copied_rows: Rows that are copied for a snapshot before callers wait. Default: 65,536.
        write_rows: Dirty hot rows that are copied to memtables at a time. Default: 65,536.
        snapshot_part_bytes: Bytes of a snapshot's rows that are taken at a time. Callers may have to wait until that
            many are written. Default: 8 MiB.
        hot_parallel_keys: The smallest batch, in keys, that a hot table splits over the cores. Passing work to a thread
            costs as much as about 1,000 keys. Default: 16,384.
        step_parallel_keys: The fewest keys per variable, on average, with which a step of several variables is spread
            over the cores. With fewer, threads would only pass the GIL to each other. Default: 1,536.
        cold_parallel_keys: The smallest batch, in keys, whose cold read is split over threads. In smaller ones a second
            thread costs more than it saves. Default: 512.
        batch_rows: Rows that are copied to a memtable, or from there to a file, at a time. Default: 4,096.
        crowded_files: The number of files in RocksDB's level 0 above which a checkpoint waits. At 48 RocksDB slows
            writers down. Default: 40.
        change_buffer_keys: Changed keys of all variables in memory. Beyond it, the variable with the most writes its
            keys to a key file. Default: 524,288.
        change_files: Key files of a variable in one epoch. Beyond it, the older half are merged into one. Default: 16.
        change_epochs: Epochs that are kept. Beyond it, the oldest are dropped, but the last whole epoch is always kept.
            Default: 256.
        change_bytes: Bytes of the epochs' key files. Beyond it, the oldest epochs are dropped, but the last whole epoch
            is always kept. Default: 256 MiB.
        change_exact_epochs: The newest epochs, whose key files stay separate. Default: 8.
        change_old_files: About how many key files all older epochs have together. Default: 1,024.
        scan_rows: Rows and keys that are read back at a time. Default: 65,536.
        sort_bytes: Bytes of rows that a load sorts in memory. Default: 64 MiB.
        table_file_bytes: Bytes of rows in one file of a load or of a snapshot. Files of a large snapshot are larger.
            Default: 32 MiB.

    Raises:
        TypeError: A limit is not an int.
        ValueError: A limit is below 1 or too large.
    """

    call_rows: int = 65_536
    init_rows: int = 8192
    min_own_copies: int = 64
    max_own_copies: int = 4096
    memtable_rows: int = 1 << 22
    ahead_rows: int = 32_768
    copied_rows: int = 65_536
    write_rows: int = 65_536
    snapshot_part_bytes: int = 8 << 20
    hot_parallel_keys: int = 16_384
    step_parallel_keys: int = 1_536
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
