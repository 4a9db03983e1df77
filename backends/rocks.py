"""Cold rows in RocksDB: one database per store, one column family per variable. Only this module, rocks_families and
rocks_options import rocksdict; rocks_scan.translated turns its errors into kvemb's.

Writes skip the write-ahead log: the store makes them durable with flush() and checkpoint(). Concurrent reads are safe;
writes to one variable must be serialised, by its lock or by the thread that spills.

Longer than 300 lines: a database and its stores are in one module, because they share its handles.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import rocksdict as rd

from kvemb.backends.open_files import FEW_FILES, most_open
from kvemb.backends.rocks_config import check_config
from kvemb.backends.rocks_families import Families
from kvemb.backends.rocks_files import SortedFile, splits
from kvemb.backends.rocks_forks import check_threads, keep_in_forks
from kvemb.backends.rocks_options import PARTITIONED, DatabaseOptions, database_creator, holding_whole
from kvemb.backends.rocks_rescue import rescue
from kvemb.backends.rocks_scan import Scan, translated
from kvemb.contracts import Family, Gap, Mask
from kvemb.errors import ColdStoreError
from kvemb.limits import DEFAULT, Limits
from kvemb.options import RocksDBCreator
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import LAST_KEY, decode_records, encode_keys, encode_records, order_keys
from kvemb.rows.hashing import Keys
from kvemb.rows.schema import Schema
from kvemb.threads.parallel import cores
from kvemb.threads.pool import Threads

READAHEAD_BYTES = 2 << 20
STALL_SECONDS = 0.002
# The pause between calls that hold the GIL, so that other threads can take it.
YIELD_SECONDS = 0.001
COMPACT_PART_BYTES = 32 << 20


class RocksDatabase:
    """One RocksDB directory, opened.

    families: its column families. cache_bytes: half is for filters and indexes that are held whole, half for the block
    cache, which holds partitioned ones (rocks_options), so that memory does not grow with the tables.
    write_buffer_bytes: for all memtables together; if files are mapped, which need no cache, the same amount is taken
    from cache_bytes in addition. compacting: whether automatic compaction is on. salvaging: also open a database that
    is damaged or lacks files.
    """

    def __init__(
        self,
        path: Path,
        families: dict[str, Family],
        *,
        cache_bytes: int,
        write_buffer_bytes: int,
        read_only: bool,
        compacting: bool = True,
        salvaging: bool = False,
        limits: Limits = DEFAULT,
    ) -> None:
        if not read_only:
            check_threads()
        keep_in_forks(self)
        self._process = os.getpid()
        self.limits = limits
        self.path, self._metadata_bytes = path, cache_bytes // 2
        creator = database_creator(families)
        mapped, cache = creator.read_mode == "mmap", rd.Cache(cache_bytes - self._metadata_bytes)
        if mapped:  # no cache is needed, and larger memtables give fewer files to merge
            write_buffer_bytes += min(cache_bytes, write_buffer_bytes)
        files = most_open(path) if compacting and not salvaging else FEW_FILES
        self._options = DatabaseOptions(cache, mapped, write_buffer_bytes, read_only, compacting, salvaging, files)
        self._stores: dict[str, RocksStore] = {}
        self._naming = threading.Lock()  # of _stores and _partitioned: variables come and go while others are written
        self.threads = min(8, cores())
        self.readers = Threads(self.threads, thread_name_prefix="kvemb-read")
        whole = set(families) if mapped else holding_whole(families, self._metadata_bytes)
        options = self._options.of_family(creator, partitioned=True)
        columns = {
            name: self._options.of_family(family.creator, partitioned=name not in whole)
            for name, family in families.items()
        }
        self._partitioned = set(families) - whole
        access = rd.AccessType.read_only(False) if read_only else rd.AccessType.read_write()
        # A database that is read in place is opened through links (layout.mirrored): errors name the real directory.
        directory = (path / "CURRENT").resolve().parent
        with translated(f"open {directory}"):
            check_config(directory)
            self.column_families = Families(path, options, columns, access)

    def create(self, name: str, schema: Schema, creator: RocksDBCreator) -> RocksStore:
        """Create an empty column family."""
        with translated(f"create {name!r}"):
            self.column_families.create(name, self._options.of_family(creator, partitioned=False))
        return self.attach(name, schema)

    def attach(self, name: str, schema: Schema) -> RocksStore:
        """Return the store of an existing column family."""
        store = RocksStore(self, self.column_families, name, schema, partitioned=name in self._partitioned)
        if store.made:
            _ = store.family  # raises an error if the database has none of this name
        with self._naming:
            self._stores[name] = store
        return store

    def drop(self, name: str) -> None:
        """Delete a column family."""
        with self._naming:
            if name in self._stores:
                self._stores.pop(name).close()
            self._partitioned.discard(name)  # a new one of this name begins with whole filters and indexes
        with translated(f"drop {name!r}"):
            self.column_families.drop(name)

    def checkpoint(self, path: Path) -> None:
        """See contracts.ColdDatabase. It costs a flush of the memtables and hard links."""
        self.flush()
        with translated(f"checkpoint to {path}"):
            self.column_families.checkpoint(path)

    @classmethod
    def families(cls, path: Path) -> list[str]:
        """See contracts.ColdDatabase."""
        with translated(f"read {path}"):
            return [name for name in rd.Rdict.list_cf(str(path)) if name != "default"]

    @classmethod
    def amend(cls, path: Path, drop: list[str], files: dict[str, list[Path]]) -> None:
        """See contracts.ColdDatabase. Opens the copy during the call. Files are ingested by hard links.

        Compaction is off, because a copy does not need it and rocksdict would wait for it while holding the GIL.
        """
        if drop or files:
            families = {name: Family(RocksDBCreator()) for name in cls.families(path)}
            family: rd.Rdict | None = None
            copy = cls(
                path, families, cache_bytes=1 << 20, write_buffer_bytes=1 << 20, read_only=False, compacting=False
            )
            try:
                for name in drop:
                    copy.drop(name)
                for name, given in files.items():
                    with translated(f"amend {path}"):
                        family, _ = copy.column_families.handles(name)
                        for file in given:
                            _ingest(family, file)
                            time.sleep(YIELD_SECONDS)
            finally:
                family = None  # a remaining handle keeps the database open
                copy.close()
        for scratch in (*path.glob("LOG*"), path / "LOCK"):
            scratch.unlink(missing_ok=True)

    def flush(self) -> None:
        """See contracts.ColdDatabase."""
        for name, store in list(self._stores.items()):
            if store.made:
                with translated(f"flush {name!r}"):
                    store.family.flush(True)

    def sorted_file(self, path: Path, schema: Schema, creator: RocksDBCreator) -> SortedFile:
        """See contracts.ColdDatabase."""
        return SortedFile(
            path, schema, rd.SstFileWriter(self._options.of_family(creator, partitioned=False)), self.limits.batch_rows
        )

    def ingest(self, name: str, path: Path) -> None:
        """See contracts.ColdDatabase. It costs a hard link, whatever the size of the file."""
        link = path.with_suffix(".link.sst")
        with translated(f"ingest {path} into {name!r}"):
            os.link(path, link)
            _ingest(self._stores[name].family, link)

    def crowded(self, name: str) -> bool:
        """See contracts.ColdDatabase. RocksDB slows writes down at rocks_options.SLOW_FILES in level 0."""
        if not self.column_families.made(name):
            return False
        family = self._stores[name].family

        def property_of(name: str) -> int:
            return int(family.property_int_value(f"rocksdb.{name}") or 0)

        if property_of("num-files-at-level0") <= self.limits.crowded_files:
            return False
        # On a full disk nothing is merged, so a wait would never end.
        return property_of("compaction-pending") + property_of("num-running-compactions") > 0

    def bound_metadata(self) -> None:
        """Write new files with partitioned filters and indexes once those held whole exceed their share of memory.

        Filters and indexes of mapped files do not count, because they take no memory of the process.
        """
        if self._options.mapped:
            return
        with self._naming:
            stores = {name: store for name, store in self._stores.items() if store.made and not store.partitioned}
            if stores and sum(store.metadata_bytes() for store in stores.values()) > self._metadata_bytes:
                for name, store in stores.items():
                    store.partition()
                    self._partitioned.add(name)

    def close(self) -> None:
        """Close the database. Its lock is released with the last handle. A forked process leaves it open."""
        if self._process != os.getpid():
            return
        self.readers.shutdown()
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        with translated(f"close {self.path}"):
            self.column_families.close()


class RocksStore:
    """contracts.ColdStore over one column family, which is made when it is first written to."""

    def __init__(
        self, database: RocksDatabase, families: Families, name: str, schema: Schema, *, partitioned: bool
    ) -> None:
        self._readers, self._threads, self._limits = database.readers, database.threads, database.limits
        self._families, self._name, self._schema = families, name, schema
        self._unlogged = rd.WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self._unlogged.memtable_insert_hint_per_batch = True
        self._unlogged.no_slowdown = True
        self._scans: WeakSet[Scan] = WeakSet()
        self._bound_metadata, self.partitioned = database.bound_metadata, partitioned

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
        if "_handles" in self.__dict__:
            with suppress(Exception):
                self.family.close()
            del self._handles, self.family

    def read(self, keys: Keys) -> tuple[RowBlock, Mask]:
        """See contracts.ColdStore. MultiGet releases the GIL, so a large batch is read by several threads."""
        if not self.made:
            return decode_records(keys[:0], [], self._schema), np.zeros(len(keys), np.bool_)
        encoded = encode_keys(keys, self._schema)
        with translated(f"read {self._name!r}"):
            if len(encoded) < self._limits.cold_parallel_keys:
                records: list[bytes | None] = self.family.get(encoded)  # type: ignore[arg-type, assignment]
            else:
                step = -(-len(encoded) // self._threads)
                pieces = [encoded[at : at + step] for at in range(0, len(encoded), step)]
                read: Any = self.family.get
                records = list(chain.from_iterable(self._readers.map(read, pieces)))
        if all(records):
            return decode_records(keys, records, self._schema), np.ones(len(records), np.bool_)  # type: ignore[arg-type]
        found = np.fromiter(map(bool, records), np.bool_, len(records))
        return decode_records(keys[found], list(filter(None, records)), self._schema), found

    def write(self, rows: RowBlock) -> None:
        """See contracts.ColdStore. Rows are put in key order, which is twice as fast for the memtable."""
        ordered = order_keys(rows.keys, self._schema)
        if (ordered[1:] < ordered[:-1]).any():
            rows = rows.select(np.argsort(ordered))
        for at in range(0, len(rows), self._limits.batch_rows):
            part = rows.part(at, min(len(rows), at + self._limits.batch_rows))
            removed = part.flags & REMOVED != 0
            any_removed = bool(removed.any())
            kept = part.select(~removed) if any_removed else part
            deletes = encode_keys(part.keys[removed], self._schema) if any_removed else []
            keys, records = encode_keys(kept.keys, self._schema), encode_records(kept)
            with translated(f"write {len(part)} rows of {self._name!r}"):
                while not self._try_write(deletes, keys, records):
                    time.sleep(STALL_SECONDS)
        self._bound_metadata()

    def _try_write(self, deletes: list[bytes], keys: list[bytes], records: list[bytes]) -> bool:
        """Write one batch; returns False if RocksDB stalls writes.

        rocksdict holds the GIL while it writes, so waiting inside RocksDB would stop every thread, and with a full disk
        it would deadlock: RocksDB's recovery waits for the writer, and the writer for the recovery.
        """
        batch = rd.WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handles[1])
        deque(map(batch.delete, deletes), maxlen=0)
        deque(map(batch.put, keys, records), maxlen=0)
        try:
            self._families.db.write(batch, self._unlogged)
        except Exception as error:
            if "Write stall" not in str(error):
                raise
            if self.family.property_int_value("rocksdb.background-errors"):
                raise ColdStoreError(
                    f"write to {self._name!r}: RocksDB's background work failed; is the disk full?"
                ) from error
            return False
        return True

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        """See contracts.ColdStore. Its snapshot's files stay on disk until the scan is exhausted or deleted."""
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
        """See contracts.ColdStore."""
        return rescue(self.family, self._schema, batch_rows)

    def splits(self, parts: int) -> list[int]:
        """See contracts.ColdStore."""
        return splits(self.family, parts) if self.made else []

    def compact(self, report: Callable[[int, int], None]) -> None:
        """See contracts.ColdStore. Compacts one range at a time, because rocksdict holds the GIL meanwhile."""
        with translated(f"compact {self._name!r}"):
            parts = max(1, self.disk_bytes() // COMPACT_PART_BYTES)
            bounds = [None, *(split.to_bytes(8, "big") for split in self.splits(parts)), None]
            options = rd.CompactOptions()
            options.set_bottommost_level_compaction(rd.BottommostLevelCompaction.force_optimized())
            for done, (first, last) in enumerate(pairwise(bounds), 1):
                self.family.compact_range(first, last, options)
                report(done, len(bounds) - 1)

    def clear(self) -> None:
        """See contracts.ColdStore."""
        if not self.made:
            return
        with translated(f"clear {self._name!r}"):
            self.family.delete_range(b"", b"\xff" * 9, self._unlogged)

    def disk_bytes(self) -> int:
        """See contracts.ColdStore."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self.family.property_int_value(name) or 0 for name in names) if self.made else 0


def _cache_blocks(family: rd.Rdict, fill: bool) -> None:
    """Set whether lookups leave blocks in the cache; partitions are cached only if data blocks are."""
    options = rd.ReadOptions()
    options.fill_cache(fill)  # type: ignore[call-arg]
    family.set_read_options(options)


def _ingest(family: rd.Rdict, file: Path) -> None:
    """Ingest one file. rocksdict holds the GIL meanwhile, so several in one call would stop other threads for long."""
    options = rd.IngestExternalFileOptions()
    options.set_move_files(True)
    family.ingest_external_file([str(file)], options)
