"""`kvemb bench spill`: why rows are spilled by sorted WriteBatch and not by ingesting SST files.

On bare rocksdict, two copies of one table take the same random overwrites in turns, each followed by a read. An
ingested file overlaps all others and goes to L0 without a write stall, so every read has to check each file that is not
compacted yet. A WriteBatch goes through the memtable, where RocksDB slows writes down before L0 grows long.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import numpy as np
import rocksdict as rd

from kvemb.tools.bench.data import Ids, batches_of_ids, ids_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.train_by_hand import encode, options

THIRDS = ("first", "second", "last")


class Spilled:
    """A table of records, and the seconds of its writes and reads, in order."""

    def __init__(self, path: Path, cache_bytes: int) -> None:
        self._folder = path
        self._options = options(cache_bytes)
        self._db = rd.Rdict(str(path), self._options)
        self._unlogged = rd.WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self._unlogged.memtable_insert_hint_per_batch = True
        self.write_seconds: list[float] = []
        self.read_seconds: list[float] = []
        self.files_in_l0: list[int] = []

    def put(self, names: list[bytes], records: list[bytes]) -> None:
        """Write sorted records through the memtable, without a log."""
        batch = rd.WriteBatch(raw_mode=True)
        deque(map(batch.put, names, records), maxlen=0)
        self._db.write(batch, self._unlogged)

    def ingest(self, names: list[bytes], records: list[bytes]) -> None:
        """Write sorted records to an SST file, and ingest it by link."""
        path = str(self._folder.with_suffix(".sst"))
        writer = rd.SstFileWriter(self._options)
        writer.open(path)
        deque(map(writer.__setitem__, names, records), maxlen=0)
        writer.finish()
        moving = rd.IngestExternalFileOptions()
        moving.set_move_files(True)
        self._db.ingest_external_file([path], moving)

    def turn(self, ids: Ids, records: list[bytes], wanted: Ids, by_ingest: bool) -> None:
        """Overwrite the rows of ids (sorted), then read those of wanted (sorted), and record the seconds of both."""
        start = time.perf_counter()
        (self.ingest if by_ingest else self.put)(encode(ids), records)
        middle = time.perf_counter()
        found: list[bytes | None] = self._db.get(encode(wanted))  # type: ignore[arg-type, assignment]
        self.read_seconds.append(time.perf_counter() - middle)
        self.write_seconds.append(middle - start)
        self.files_in_l0.append(int(self._db.property_value("rocksdb.num-files-at-level0") or 0))
        if any(record is None for record in found):
            raise AssertionError("a row is missing")

    def settle(self) -> float:
        """Flush and compact everything; returns the seconds it took."""
        start = time.perf_counter()
        self._db.flush(True)
        self._db.compact_range(None, None)
        return time.perf_counter() - start

    def close(self) -> None:
        """Release the files."""
        self._db.close()


def run(
    rows: int, record_bytes: int, batch: int, batches: int, reads: int, cache_mib: int, folder: Path | None
) -> Report:
    """Load both tables, then overwrite `batches` batches of random rows, reading `reads` random rows after each."""
    settings: dict[str, object] = {"rows": rows, "record_bytes": record_bytes, "batch": batch, "batches": batches}
    report = Report("spill", {**settings, "reads": reads, "cache_mib": cache_mib})
    rng = np.random.default_rng(6)
    with scratch(folder) as path:
        tables = [Spilled(path / name, cache_mib << 20) for name in ("put", "ingest")]
        for ids in batches_of_ids(rows, batch):
            for table in tables:
                table.put(encode(np.sort(ids)), _records(rng, len(ids), record_bytes))
        for table in tables:
            table.settle()
        for _ in range(batches):
            ids = np.sort(ids_of(rng.choice(rows, min(batch, rows), replace=False, shuffle=False)))
            records = _records(rng, len(ids), record_bytes)
            wanted = np.sort(ids_of(rng.integers(0, rows, reads)))
            for by_ingest, table in enumerate(tables):
                table.turn(ids, records, wanted, bool(by_ingest))
        report.facts["seconds_to_compact_all"] = [round(table.settle(), 1) for table in tables]
        for table in tables:
            table.close()
    put, ingest = tables
    report.facts["max_files_in_l0"] = [max(table.files_in_l0) for table in tables]
    report.facts["longest_write_s"] = [round(max(table.write_seconds), 3) for table in tables]
    report.facts["write_and_read_s"] = [round(sum(table.write_seconds + table.read_seconds), 1) for table in tables]
    written = min(batch, rows)
    writes, peer_writes = _rates(written, put.write_seconds), _rates(written, ingest.write_seconds)
    lines = [compare("write", "rows/s", writes, "SST ingest", peer_writes)]
    for third, part in zip(THIRDS, np.array_split(np.arange(batches), 3), strict=True):
        ours, theirs = (_rates(reads, [table.read_seconds[i] for i in part]) for table in tables)
        lines.append(compare(f"read, {third} third", "rows/s", ours, "SST ingest", theirs))
    report.lines = lines
    return report


def _rates(rows: int, seconds: list[float]) -> list[float]:
    return [rows / each for each in seconds]


def _records(rng: np.random.Generator, count: int, record_bytes: int) -> list[bytes]:
    """Return records that do not compress, as trained rows do not."""
    records: list[bytes] = np.frombuffer(rng.bytes(count * record_bytes), f"V{record_bytes}").tolist()
    return records
