"""Sorted WriteBatch or ingested SST files, with rocksdict alone: the comparison of docs/inside/decisions.md.

On bare rocksdict, two copies of one table take the same random overwrites in turns, each followed by a read. An
ingested file overlaps all others and goes to L0 without a write stall, so every read has to check each file that is not
compacted yet. A WriteBatch goes through the memtable, where RocksDB slows writes down before L0 grows long.
"""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

import numpy as np

from kvemb.tools.bench.data import Ids, batches_of_ids, ids_of
from kvemb.tools.bench.measure import scratch, seconds
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.train_by_hand import RawTable

CACHE_BYTES = 64 << 20
THIRDS = ("first", "second", "last")


def run(
    rows: int = 4_000_000, record_bytes: int = 273, batch: int = 65_536, batches: int = 120, reads: int = 16_384
) -> Report:
    """Overwrite `batches` batches of random rows, each followed by a read of `reads` rows."""
    report, rng, written = Report(), np.random.default_rng(6), min(batch, rows)
    with scratch(None) as path:
        tables = [RawTable(path / name, CACHE_BYTES) for name in ("put", "ingest")]
        for ids in batches_of_ids(rows, batch):
            for table in tables:
                table.put(np.sort(ids), _records(rng, len(ids), record_bytes))
        for table in tables:
            _compact(table)
        found: tuple[list[_Turn], ...] = ([], [])
        for _ in range(batches):
            ids = np.sort(ids_of(rng.choice(rows, written, replace=False, shuffle=False)))
            records = _records(rng, len(ids), record_bytes)
            wanted = np.sort(ids_of(rng.integers(0, rows, reads)))
            for table, turns in zip(tables, found, strict=True):
                turns.append(_turn(table, ids, records, wanted, by_ingest=table is tables[1]))
        report.facts["seconds_to_compact_all"] = [round(seconds(partial(_compact, table)), 1) for table in tables]
        for table in tables:
            table.close()
    report.facts["max_files_in_l0"] = [max(turn.files_in_l0 for turn in turns) for turns in found]
    report.facts["longest_write_s"] = [round(max(turn.write for turn in turns), 3) for turns in found]
    report.facts["write_and_read_s"] = [round(sum(turn.write + turn.read for turn in turns), 1) for turns in found]
    writes, peer_writes = ([written / turn.write for turn in turns] for turns in found)
    report.lines = [compare("write", "rows/s", writes, "SST ingest", peer_writes)]
    for third, part in zip(THIRDS, np.array_split(np.arange(batches), 3), strict=True):
        ours, theirs = ([reads / turns[i].read for i in part] for turns in found)
        report.lines.append(compare(f"read, {third} third", "rows/s", ours, "SST ingest", theirs))
    return report


class _Turn(NamedTuple):
    """Seconds of a write and of a read, and how many files were not compacted then."""

    write: float
    read: float
    files_in_l0: int


def _turn(table: RawTable, ids: Ids, records: list[bytes], wanted: Ids, *, by_ingest: bool) -> _Turn:
    """Overwrite the rows of ids, then read those of wanted."""
    start = time.perf_counter()
    if by_ingest:
        table.ingest([(ids, records)])
    else:
        table.put(ids, records)
    middle = time.perf_counter()
    found = table.get(wanted)
    end = time.perf_counter()
    if any(record is None for record in found):
        raise AssertionError("a row is missing")
    return _Turn(middle - start, end - middle, int(table.db.property_value("rocksdb.num-files-at-level0") or 0))


def _compact(table: RawTable) -> None:
    table.flush()
    table.db.compact_range(None, None)


def _records(rng: np.random.Generator, count: int, record_bytes: int) -> list[bytes]:
    """Return records that do not compress, as trained rows do not."""
    records: list[bytes] = np.frombuffer(rng.bytes(count * record_bytes), f"V{record_bytes}").tolist()
    return records


if __name__ == "__main__":
    run().show("spill_or_ingest", {}, as_json=False)
