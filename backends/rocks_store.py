"""Cold rows of one variable in RocksDB: one column family. rocks_scan.translated turns RocksDB's errors into kvemb's.

Rows that are written become a file, which is added to the family as a whole: RocksDB has no memtable and no log of its
own. The store makes rows durable with checkpoint(). Concurrent reads are safe; writes to one variable must be
serialised.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import rocksdict as rd

from kvemb.backends.rocks_families import Families
from kvemb.backends.rocks_files import RocksSortedFile, splits
from kvemb.backends.rocks_options import PARTITIONED, SLOW_FILES, DatabaseOptions
from kvemb.backends.rocks_rescue import rescue
from kvemb.backends.rocks_scan import Scan, translated
from kvemb.backends.table_files import reading
from kvemb.backends.table_files.reader import States, TableReader
from kvemb.backends.table_files.writer import TableWriter
from kvemb.contracts import ColdStore, Gap, Mask
from kvemb.errors import ColdStoreError
from kvemb.limits import Limits
from kvemb.options import RocksDBCreator
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import KEY_BYTES, LAST_KEY, Ordered, decode_records, encode_keys, order_keys
from kvemb.rows.hashing import Positions
from kvemb.rows.schema import Schema
from kvemb.threads.interrupts import uninterrupted
from kvemb.threads.parallel import free_cores

READAHEAD_BYTES = 2 << 20
# Keys that a thread reads before it looks again whether cores are free.
READ_KEYS = 4_096
STALL_SECONDS = 0.002
# How long a new file waits at most for others to be merged: RocksDB may have stopped, as on a full disk.
MERGE_SECONDS = 10.0
COMPACT_PART_BYTES = 32 << 20


class RocksStore(ColdStore):
    """A cold store that is one column family, which is made when its first file is.

    path: of the database, opened with these options. readers: threads for large reads; threads: how many.
    bound_metadata: called after each new file. partitioned: whether new files have partitioned filters and indexes.
    folder: of the files, if kernels read them (table_files).
    """

    def __init__(
        self,
        families: Families,
        name: str,
        schema: Schema,
        creator: RocksDBCreator,
        *,
        path: Path,
        options: DatabaseOptions,
        readers: Executor,
        threads: int,
        limits: Limits,
        bound_metadata: Callable[[], None],
        partitioned: bool,
        folder: Path | None,
    ) -> None:
        self._families, self._name, self.schema, self._creator = families, name, schema, creator
        self._path, self._numbers = path, count()
        self._readers, self._threads, self._limits = readers, threads, limits
        self._scans: WeakSet[Scan] = WeakSet()
        self._bound_metadata, self.partitioned = bound_metadata, partitioned
        self.opened_with(options, folder)

    def opened_with(self, options: DatabaseOptions, folder: Path | None) -> None:
        """Take note that the database was opened with these options. REQUIRES: there are no files."""
        self._options = options
        self._tables = None if folder is None else TableReader(self._name, folder)

    @property
    def made(self) -> bool:
        """Whether its family exists. If not, it has no files."""
        return self._families.made(self._name)

    @cached_property
    def family(self) -> rd.Rdict:
        """The handle of its family. Makes the family if it is new."""
        with translated(f"open {self._name!r}"):
            family = self._families.family(self._name)
        _cache_blocks(family, self.partitioned)
        return family

    def _count(self, name: str) -> int:
        return self.family.property_int_value(f"rocksdb.{name}") or 0

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
        if "family" in self.__dict__:
            with suppress(Exception):
                self.family.close()
            del self.family

    # Reads.

    def fill(self, rows: RowBlock) -> Mask:
        states = np.zeros(len(rows), np.uint8)  # reading.UNKNOWN
        if len(rows) and self.made:
            with translated(f"read {self._name!r}"):
                if self._tables is None or not self._tables.read(self.family, rows, states, self._spread):
                    self._read_by_rocksdb(np.arange(len(rows)), rows, states)
                elif np.count_nonzero(asked := states == reading.ASK):
                    self._read_by_rocksdb(asked.nonzero()[0], rows, states)
        found: Mask = states == reading.FOUND
        return found

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

    def _read_by_rocksdb(self, at: Positions, rows: RowBlock, states: States) -> None:
        """Read the rows of the keys at some positions, in the order of the files."""
        at = at[np.argsort(order_keys(rows.keys[at], self.schema))]
        records = self._get(encode_keys(rows.keys[at], self.schema))
        exist = np.fromiter(map(bool, records), np.bool_, len(records))
        if exist.any():
            found = at[exist]
            rows.put(found, decode_records(rows.keys[found], [each for each in records if each], self.schema))
            states[found] = reading.FOUND

    def _get(self, encoded: list[bytes]) -> list[bytes | None]:
        """Return the record of each key, or None. MultiGet releases the GIL."""
        records: list[bytes | None] = [None] * len(encoded)

        def get(begin: int, end: int) -> None:
            found: Any = self.family.get(encoded[begin:end])  # type: ignore[arg-type]
            records[begin:end] = found

        self._spread(get, len(encoded))
        return records

    # Writes.

    def write(self, rows: RowBlock) -> int:
        if len(rows) == 0:
            return 0
        ordered, places = _last_of_each_key(rows)
        file = self._new_file()
        try:
            for at in range(0, len(ordered), self._limits.batch_rows):
                part = slice(at, at + self._limits.batch_rows)
                file.append_at(rows, ordered[part], places[part])
            file.finish()
            self._wait_for_merges()
            with translated(f"write {len(ordered)} rows of {self._name!r}"):
                self.ingest(file.path, move=True)
        finally:
            file.close()
            file.path.unlink(missing_ok=True)
        self._bound_metadata()
        return len(ordered)

    def _new_file(self) -> TableWriter | RocksSortedFile:
        path = self._path / f"{id(self):x}-{next(self._numbers)}.new.sst"
        if self._options.mapped and self._creator.compression == "none":
            return TableWriter(path, self.schema, self._creator)
        options = self._options.of_family(self._creator, partitioned=self.partitioned)
        return RocksSortedFile(path, self.schema, rd.SstFileWriter(options), self._limits.batch_rows)

    def _wait_for_merges(self) -> None:
        """Wait while RocksDB merges, if a read has to look into too many files: it slows only its own writes down."""
        until = time.monotonic() + MERGE_SECONDS
        while self.files_to_merge() >= SLOW_FILES and self.merging() and time.monotonic() < until:
            time.sleep(STALL_SECONDS)

    def files_to_merge(self) -> int:
        """Return how many files of level 0 it has."""
        return self._count("num-files-at-level0")

    def merging(self) -> bool:
        """Whether files are being merged, or will be. On a full disk none are, so a wait would never end."""
        return bool(self._count("compaction-pending") + self._count("num-running-compactions"))

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
        scan = Scan(self._name, self.schema, items, check, batch_rows, (start, last.to_bytes(8, "big")))
        self._scans.add(scan)
        return scan

    def rescue(self, batch_rows: int) -> Iterator[RowBlock | Gap]:
        return rescue(self.family, self.schema, batch_rows)

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
        # A file of one deletion, of all keys: kernels read no file below it (table_files.listing).
        if self.made:
            with uninterrupted(), self._changing_files(), translated(f"clear {self._name!r}"):
                self._delete_all()
                self.family.flush(True)

    def _delete_all(self) -> None:
        """Delete all keys, again and again as long as RocksDB stalls writes.

        rocksdict holds the GIL while it writes, so waiting inside RocksDB would stop every thread, and with a full disk
        it would deadlock: RocksDB's recovery waits for the writer, and the writer for the recovery.
        """
        options = rd.WriteOptions()
        options.disable_wal = True  # type: ignore[method-assign, assignment]
        options.no_slowdown = True
        while True:
            try:
                return self.family.delete_range(b"", b"\xff" * (KEY_BYTES + 1), options)
            except Exception as error:
                if "Write stall" not in str(error):
                    raise
                if self._count("background-errors"):
                    what = f"clear {self._name!r}"
                    raise ColdStoreError(f"{what}: RocksDB's background work failed; is the disk full?") from error
            time.sleep(STALL_SECONDS)

    def ingest(self, path: Path, *, move: bool) -> None:
        """Ingest one file. rocksdict holds the GIL meanwhile: several in one call would stop other threads for long."""
        options = rd.IngestExternalFileOptions()
        options.set_move_files(move)
        with self._changing_files():
            self.family.ingest_external_file([str(path)], options)

    def _changing_files(self) -> AbstractContextManager[None]:
        return nullcontext() if self._tables is None else self._tables.changing()

    def disk_bytes(self) -> int:
        return self._count("total-sst-files-size") if self.made else 0


def _last_of_each_key(rows: RowBlock) -> tuple[Ordered, Positions]:
    """Return the keys of rows, ordered, distinct and ascending, and the position of the last row of each."""
    ordered = order_keys(rows.keys, rows.schema)
    places = np.argsort(ordered, kind="stable")
    ordered = ordered[places]
    last = np.append(ordered[1:] != ordered[:-1], True)
    return (ordered, places) if last.all() else (ordered[last], places[last])


def _cache_blocks(family: rd.Rdict, fill: bool) -> None:
    """Set whether lookups leave blocks in the cache; partitions are cached only if data blocks are."""
    options = rd.ReadOptions()
    options.fill_cache(fill)  # type: ignore[call-arg]
    family.set_read_options(options)
