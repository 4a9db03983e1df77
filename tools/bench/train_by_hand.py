"""Tables written by hand on rocksdict by a careful user, with which benchmarks compare kvemb.

Sorted keys, one sorted WriteBatch without a log, a Bloom filter, and the whole memory budget as block cache and
memtables. Index and filter blocks are outside the cache, which is faster; their memory is not counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import rocksdict as rd

from kvemb.tools.bench.data import Floats, Ids

WRITE_BUFFER_BYTES = 32 << 20
WRITE_BUFFERS = 2


class RawTable:
    """One raw record per key. All ids are distinct and ascend. db: the database."""

    def __init__(self, path: Path, memory_bytes: int) -> None:
        self._options = options(memory_bytes)
        self.db = rd.Rdict(str(path), self._options)
        self._unlogged = rd.WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self._unlogged.memtable_insert_hint_per_batch = True

    def put(self, ids: Ids, records: list[bytes]) -> None:
        """Write records through the memtable."""
        batch = rd.WriteBatch(raw_mode=True)
        deque(map(batch.put, encode(ids), records), maxlen=0)
        self.db.write(batch, self._unlogged)

    def ingest(self, parts: Iterable[tuple[Ids, list[bytes]]]) -> None:
        """Write records as finished table files, one for each part, which are moved to the database."""
        paths: list[str] = []
        for ids, records in parts:
            paths.append(str(Path(self.db.path()) / f"ingested-{len(paths)}"))
            writer = rd.SstFileWriter(self._options)
            writer.open(paths[-1])
            deque(map(writer.__setitem__, encode(ids), records), maxlen=0)
            writer.finish()
        moved = rd.IngestExternalFileOptions()
        moved.set_move_files(True)
        self.db.ingest_external_file(paths, moved)

    def get(self, ids: Ids) -> list[bytes]:
        """Return the records, None for a missing one."""
        records: list[bytes] = self.db.get(encode(ids))  # type: ignore[arg-type, assignment]
        return records

    def flush(self) -> None:
        """Flush the memtables, as a store's flush does, so that the first steps do not pay for the load."""
        self.db.flush(True)

    def checkpoint(self, path: Path) -> None:
        """Make a checkpoint of all rows: memtables are flushed, files linked."""
        rd.Checkpoint(self.db).create_checkpoint(str(path))

    def close(self) -> None:
        """Release the files."""
        self.db.close()


class RocksLoop(RawTable):
    """A training loop over rows of dim float32 with their Adagrad accumulators.

    A step reads once: the rows read for the forward pass are the ones updated. Records are joined once to an array.
    """

    def __init__(self, path: Path, dim: int, learning_rate: float, epsilon: float, memory_bytes: int) -> None:
        super().__init__(path, memory_bytes)
        self._dim, self._rate, self._epsilon = dim, np.float32(learning_rate), np.float32(epsilon)

    def load(self, ids: Ids, values: Floats) -> None:
        """Insert rows (n, dim) of distinct ids (n,), in any order, with zero accumulators."""
        order = np.argsort(ids)
        self.put(ids[order], self.untrained(values[order]))

    def untrained(self, values: Floats) -> list[bytes]:
        """Return the records of rows with zero accumulators."""
        return self._records(np.hstack([values, np.zeros_like(values)]))

    def train(self, ids: Ids, pull: Floats) -> None:
        """Read the rows of ids, and take an Adagrad step with the gradient `row - pull`."""
        unique, inverse = np.unique(ids, return_inverse=True)
        rows = self._read(unique)
        grads = rows[inverse, : self._dim] - pull
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(len(unique)))
        summed = np.add.reduceat(grads[order], starts, axis=0)
        accumulator = rows[:, self._dim :]
        accumulator += summed * summed
        rows[:, : self._dim] -= self._rate * summed / (np.sqrt(accumulator) + self._epsilon)
        self.put(unique, self._records(rows))

    def values(self, ids: Ids) -> Floats:
        """Return the embeddings (n, dim) of distinct ids (n,), in any order."""
        order = np.argsort(ids)
        out = np.empty((len(ids), self._dim), np.float32)
        out[order] = self._read(ids[order])[:, : self._dim]
        return out

    def _read(self, ids: Ids) -> Floats:
        return np.frombuffer(b"".join(self.get(ids)), np.float32).reshape(len(ids), 2 * self._dim).copy()

    def _records(self, rows: Floats) -> list[bytes]:
        records: list[bytes] = rows.view(f"V{8 * self._dim}").ravel().tolist()
        return records


def encode(ids: Ids) -> list[bytes]:
    """Return 8-byte keys that sort as the ids do."""
    ordered = ids.view(np.uint64) ^ np.uint64(1 << 63)
    names: list[bytes] = ordered.astype(">u8").view("V8").tolist()
    return names


def options(memory_bytes: int) -> rd.Options:
    """Return the options of both benchmarks on rocksdict: two memtables, the rest of memory_bytes as block cache."""
    table = rd.BlockBasedOptions()
    table.set_block_cache(rd.Cache(max(1 << 20, memory_bytes - WRITE_BUFFERS * WRITE_BUFFER_BYTES)))
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    database = rd.Options(raw_mode=True)
    database.set_block_based_table_factory(table)
    database.set_compression_type(rd.DBCompressionType.none())
    database.set_write_buffer_size(WRITE_BUFFER_BYTES)
    database.set_max_write_buffer_number(WRITE_BUFFERS)
    database.set_max_background_jobs(2)
    database.set_stats_dump_period_sec(0)
    return database
