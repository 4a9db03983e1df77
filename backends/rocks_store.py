"""Cold rows of one variable in RocksDB: one column family. rocks_scan.translated turns RocksDB's errors into kvemb's.

Writes skip the write-ahead log: the store makes them durable with flush() and checkpoint(). Concurrent reads are safe;
writes to one variable must be serialised, by its lock or by the thread that spills.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import nullcontext, suppress
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakMethod, WeakSet

import numpy as np
import rocksdict as rd

from kvemb.backends.rocks_families import Families
from kvemb.backends.rocks_files import splits
from kvemb.backends.rocks_options import PARTITIONED
from kvemb.backends.rocks_rescue import rescue
from kvemb.backends.rocks_scan import Scan, translated
from kvemb.backends.table_files.reader import TableReader
from kvemb.backends.table_files.reading import ASK, FOUND
from kvemb.contracts import ColdStore, Gap, Mask
from kvemb.errors import ColdStoreError
from kvemb.limits import Limits
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import LAST_KEY, decode_records, encode_keys, encode_records, order_keys
from kvemb.rows.hashing import Keys
from kvemb.rows.schema import Schema
from kvemb.threads.parallel import free_cores

READAHEAD_BYTES = 2 << 20
# Keys that a thread reads before it looks again whether cores are free.
READ_KEYS = 4_096
STALL_SECONDS = 0.002
COMPACT_PART_BYTES = 32 << 20


Property = TypeVar("Property")


class RocksStore(ColdStore):
    """A cold store that is one column family, which is made when it is first written to.

    readers: threads for large reads; threads: how many. bound_metadata: called after each write. partitioned: whether
    new files have partitioned filters and indexes. folder: of the files, if kernels read them (table_files).
    """

    def __init__(
        self,
        families: Families,
        name: str,
        schema: Schema,
        *,
        readers: Executor,
        threads: int,
        limits: Limits,
        bound_metadata: Callable[[], None],
        partitioned: bool,
        folder: Path | None,
    ) -> None:
        self._families, self._name, self._schema = families, name, schema
        self._readers, self._threads, self._limits = readers, threads, limits
        self._unlogged = rd.WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self._unlogged.memtable_insert_hint_per_batch = True
        self._unlogged.no_slowdown = True
        self._scans: WeakSet[Scan] = WeakSet()
        self._bound_metadata, self.partitioned = bound_metadata, partitioned
        self.read_files_in(folder)

    def read_files_in(self, folder: Path | None) -> None:
        """Let kernels read the files in a folder; None: RocksDB reads them. REQUIRES: it has no rows yet, or is new."""
        count, text = _weakly(self._count), _weakly(self._text)
        self._tables = None if folder is None else TableReader(self._name, folder, count, text)

    @property
    def made(self) -> bool:
        """Whether its family exists. If not, it has no rows."""
        return self._families.made(self._name)

    @cached_property
    def _handles(self) -> tuple[rd.Rdict, rd.ColumnFamily]:
        with translated(f"open {self._name!r}"):
            family, handle = self._families.handles(self._name)
        _cache_blocks(family, self.partitioned)
        return family, handle

    @cached_property
    def family(self) -> rd.Rdict:
        """The handle of its family for all but batches of writes. Makes the family if it is new."""
        return self._handles[0]

    def _count(self, name: str) -> int:
        return self.family.property_int_value(f"rocksdb.{name}") or 0

    def _text(self, name: str) -> str:
        return str(self.family.property_value(f"rocksdb.{name}") or "")

    def metadata_bytes(self) -> int:
        """Return the bytes of filters and indexes that the readers of its files hold."""
        return self.family.property_int_value("rocksdb.estimate-table-readers-mem") or 0

    def partition(self) -> None:
        """From now on write new files with partitioned filters and indexes."""
        with translated(f"set the options of {self._name!r}"):
            self.family.set_options(PARTITIONED)
        self.partitioned = True
        _cache_blocks(self.family, True)

    def close(self) -> None:
        """End scans and release the handles. After a failed write RocksDB fails here again, which is ignored."""
        for scan in list(self._scans):
            scan.close()
        if self._tables is not None:
            self._tables.let_go()
        if "_handles" in self.__dict__:
            with suppress(Exception):
                self.family.close()
            del self._handles, self.family

    def read(self, keys: Keys) -> tuple[RowBlock, Mask]:
        if not self.made:
            return RowBlock(self._schema, 0), np.zeros(len(keys), np.bool_)
        with translated(f"read {self._name!r}"):
            read = None if self._tables is None else self._tables.read(keys, self._schema, self._spread)
        if read is None:
            return self._read_by_rocksdb(keys)
        rows, states = read
        found = states == FOUND
        if len(asked := (states == ASK).nonzero()[0]):
            others, found[asked] = self._read_by_rocksdb(keys[asked])
            rows.put(asked[found[asked]], others)
        return rows if found.all() else rows.select(found), found

    def _spread(self, work: Callable[[int, int], None], count: int) -> None:
        """Call a function with the bounds of parts of a range. As soon as cores are free, threads share what is left.

        If all cores read other variables, sharing would only cost switches of threads.
        """
        done = 0
        while done < count:
            left = count - done
            if left >= self._limits.cold_parallel_keys and (threads := min(self._threads, free_cores())) > 1:
                bounds = [done + left * part // threads for part in range(threads + 1)]
                deque(self._readers.map(work, bounds[:-1], bounds[1:]), maxlen=0)
                return
            done, begin = min(count, done + READ_KEYS), done
            work(begin, done)

    def _read_by_rocksdb(self, keys: Keys) -> tuple[RowBlock, Mask]:
        with translated(f"read {self._name!r}"):
            records = self._get(encode_keys(keys, self._schema))
        if not any(records):
            return RowBlock(self._schema, 0), np.zeros(len(keys), np.bool_)
        if all(records):
            return decode_records(keys, records, self._schema), np.ones(len(records), np.bool_)  # type: ignore[arg-type]
        found = np.fromiter(map(bool, records), np.bool_, len(records))
        return decode_records(keys[found], list(filter(None, records)), self._schema), found

    def _get(self, encoded: list[bytes]) -> list[bytes | None]:
        """Return the record of each key, or None. MultiGet releases the GIL."""
        records: list[bytes | None] = [None] * len(encoded)

        def get(begin: int, end: int) -> None:
            found: Any = self.family.get(encoded[begin:end])  # type: ignore[arg-type]
            records[begin:end] = found

        self._spread(get, len(encoded))
        return records

    def write(self, rows: RowBlock) -> None:
        # Rows are put in key order, which is twice as fast for the memtable.
        ordered = order_keys(rows.keys, self._schema)
        if (ordered[1:] < ordered[:-1]).any():
            rows = rows.select(np.argsort(ordered))
            ordered = order_keys(rows.keys, self._schema)
        for at in range(0, len(rows), self._limits.batch_rows):
            end = min(len(rows), at + self._limits.batch_rows)
            part = rows.part(at, end)
            removed = part.flags & REMOVED != 0
            any_removed = bool(removed.any())
            kept = part.select(~removed) if any_removed else part
            deletes = encode_keys(part.keys[removed], self._schema) if any_removed else []
            keys, records = encode_keys(kept.keys, self._schema), encode_records(kept)
            what, put = f"write {len(part)} rows of {self._name!r}", partial(self._put, deletes, keys, records)
            with translated(what), nullcontext() if self._tables is None else self._tables.writing(ordered[at:end]):
                self._write(what, put)
        self._bound_metadata()

    def _put(self, deletes: list[bytes], keys: list[bytes], records: list[bytes]) -> None:
        batch = rd.WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handles[1])
        deque(map(batch.delete, deletes), maxlen=0)
        deque(map(batch.put, keys, records), maxlen=0)
        self._families.db.write(batch, self._unlogged)

    def _write(self, what: str, write: Callable[[], None]) -> None:
        """Call a function that writes, again and again as long as RocksDB stalls writes. what: it, for messages.

        rocksdict holds the GIL while it writes, so waiting inside RocksDB would stop every thread, and with a full disk
        it would deadlock: RocksDB's recovery waits for the writer, and the writer for the recovery.
        """
        with translated(what):
            while True:
                try:
                    return write()
                except Exception as error:
                    if "Write stall" not in str(error):
                        raise
                    if self.family.property_int_value("rocksdb.background-errors"):
                        raise ColdStoreError(f"{what}: RocksDB's background work failed; is the disk full?") from error
                time.sleep(STALL_SECONDS)

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        # Its snapshot's files stay on disk until the scan is exhausted or deleted.
        if not self.made:
            return iter(())
        options = rd.ReadOptions()
        options.set_readahead_size(READAHEAD_BYTES)
        options.fill_cache(False)  # type: ignore[call-arg]
        # Both iterators see the state at their creation. rocksdict's Snapshot would not help: its iterators see later
        # writes. Nor would bounds in the options: rocksdict encodes them as if keys were not raw.
        start = first.to_bytes(8, "big")
        items, check = self.family.items(from_key=start, read_opt=options), self.family.iter(options)
        scan = Scan(self._name, self._schema, items, check, batch_rows, (start, last.to_bytes(8, "big")))
        self._scans.add(scan)
        return scan

    def rescue(self, batch_rows: int) -> Iterator[RowBlock | Gap]:
        return rescue(self.family, self._schema, batch_rows)

    def splits(self, parts: int) -> list[int]:
        return splits(self.family, parts) if self.made else []

    def compact(self, report: Callable[[int, int], None]) -> None:
        # Compacts one range at a time, because rocksdict holds the GIL meanwhile.
        with translated(f"compact {self._name!r}"):
            parts = max(1, self.disk_bytes() // COMPACT_PART_BYTES)
            bounds = [None, *(split.to_bytes(8, "big") for split in self.splits(parts)), None]
            options = rd.CompactOptions()
            options.set_bottommost_level_compaction(rd.BottommostLevelCompaction.force_optimized())
            for done, (first, last) in enumerate(pairwise(bounds), 1):
                self.family.compact_range(first, last, options)
                report(done, len(bounds) - 1)
        if self._tables is not None:
            self._tables.let_go()

    def clear(self) -> None:
        if not self.made:
            return
        with nullcontext() if self._tables is None else self._tables.changing(cleared=True):
            self._write(f"clear {self._name!r}", lambda: self.family.delete_range(b"", b"\xff" * 9, self._unlogged))

    def ingest(self, path: Path, *, move: bool) -> None:
        """Ingest one file. rocksdict holds the GIL meanwhile: several in one call would stop other threads for long."""
        options = rd.IngestExternalFileOptions()
        options.set_move_files(move)
        with nullcontext() if self._tables is None else self._tables.changing():
            self.family.ingest_external_file([str(path)], options)

    def disk_bytes(self) -> int:
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self.family.property_int_value(name) or 0 for name in names) if self.made else 0


def _cache_blocks(family: rd.Rdict, fill: bool) -> None:
    """Set whether lookups leave blocks in the cache; partitions are cached only if data blocks are."""
    options = rd.ReadOptions()
    options.fill_cache(fill)  # type: ignore[call-arg]
    family.set_read_options(options)


def _weakly(method: Callable[[str], Property]) -> Callable[[str], Property]:
    """Return a function that calls a method and does not keep its object: a store that nobody uses any more lets go of
    the database at once, not at a garbage collection.
    """
    reference = WeakMethod(method)

    def call(name: str) -> Property:
        method = reference()
        assert method is not None
        return method(name)

    return call
