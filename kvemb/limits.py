"""How much one step of the machinery takes at a time. A frozen value: a store is made with one, tests with small
ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes that bound memory and pauses; results do not depend on them.

    call_rows: distinct keys that a call works on at a time; longer calls are taken in chunks.
    init_rows: rows the hot tables of a variable hold at first, when neither init_size nor hot_rows says.
    min_spill_rows, max_spill_rows: rows of a pile of the spill buffer. 65,536 is enough for RocksDB to take in one run;
    beyond that nothing is gained.
    write_rows: dirty rows that one write to the cold store takes.
    snapshot_file_bytes: rows of a snapshot taken at a time: one sorted file each, whose writing is what callers may
    have to wait for.
    """

    call_rows: int = 65_536
    init_rows: int = 8192
    min_spill_rows: int = 64
    max_spill_rows: int = 65_536
    write_rows: int = 65_536
    snapshot_file_bytes: int = 2 << 20
