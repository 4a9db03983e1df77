"""RocksDB as a store's database of cold rows: one column family per variable (rocks_store).

Only this module and those named rocks_store, rocks_families and rocks_options import rocksdict.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import rocksdict as rd

from kvemb.backends.open_files import LEAST_OPEN, PLENTY, most_open, opening_threads, raise_limit
from kvemb.backends.rocks_config import check_config
from kvemb.backends.rocks_families import Families
from kvemb.backends.rocks_files import RocksSortedFile
from kvemb.backends.rocks_forks import check_threads, keep_in_forks
from kvemb.backends.rocks_manifest import amend
from kvemb.backends.rocks_options import INDEX_CACHE_BYTES, DatabaseOptions, database_creator, holding_whole
from kvemb.backends.rocks_scan import translated
from kvemb.backends.rocks_store import RocksStore
from kvemb.backends.table_files.writer import TableWriter
from kvemb.contracts import ColdDatabase, Family, SortedFile
from kvemb.errors import ColdStoreError
from kvemb.hard_links import linked, renew_full
from kvemb.limits import DEFAULT, Limits
from kvemb.options import RocksDBCreator
from kvemb.rows.schema import Schema
from kvemb.threads.interrupts import uninterrupted
from kvemb.threads.parallel import cores
from kvemb.threads.pool import Threads

# How long to wait for RocksDB to go on after a failure: two of its looks at the disk.
RESUME_SECONDS, RESUME_TURN_SECONDS = 11.0, 0.1


class RocksDatabase(ColdDatabase):
    """One RocksDB directory, opened.

    families: its column families. cache_bytes: used if files are not mapped; half is for filters and indexes that are
    held whole, half for the block cache, which holds partitioned ones (rocks_options), so that memory does not grow
    with the tables. page_cache: bytes of memory that are left for the system to cache files; None: enough. compacting:
    whether automatic compaction is on. salvaging: also open a database that is damaged or lacks files.
    """

    def __init__(
        self,
        path: Path,
        families: dict[str, Family],
        *,
        cache_bytes: int,
        read_only: bool,
        page_cache: int | None = None,
        compacting: bool = True,
        salvaging: bool = False,
        limits: Limits = DEFAULT,
    ) -> None:
        if not read_only:
            check_threads()
        keep_in_forks(self)
        self._process = os.getpid()
        self.limits = limits
        self.path = path
        creator = database_creator(families)
        self._creator, self._creators = creator, {name: family.creator for name, family in families.items()}
        mapped = creator.read_mode == "mmap"
        self._metadata_bytes = cache_bytes // 2
        files = most_open(path) if compacting and not salvaging else LEAST_OPEN
        # Not if RocksDB would read rows for lookups: it would read a whole index and filter from the disk for each.
        by_kernels = mapped and files is None and {each.creator.compression for each in families.values()} == {"none"}
        past_cache = by_kernels and page_cache is not None and _bypasses(path, page_cache)
        cache = rd.Cache(INDEX_CACHE_BYTES if past_cache else cache_bytes - self._metadata_bytes)
        self._options = DatabaseOptions(
            cache, mapped, read_only, compacting, salvaging, files, opening_threads(path), past_cache
        )
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
            self._creators[name] = creator
            wanted = database_creator({each: Family(other) for each, other in self._creators.items()})
            if wanted == self._creator or not self._opened_again(wanted):
                self.column_families.create(name, self._options.of_family(creator, partitioned=False))
        return self.attach(name, schema)

    @property
    def read_mode(self) -> str:
        return self._creator.read_mode

    def _opened_again(self, creator: RocksDBCreator) -> bool:
        """Open the database again as this creator of a whole database says; returns whether: only while it is empty."""
        mapped = creator.read_mode == "mmap"
        options = replace(self._options, mapped=mapped)
        named = {name: options.of_family(each, partitioned=False) for name, each in self._creators.items()}
        if opened := self.column_families.reopen(options.of_family(creator, partitioned=True), named):
            self._options, self._creator = options, creator
            for store in self._stores.values():
                store.opened_with(options, self._folder)
        return opened

    @property
    def _folder(self) -> Path | None:
        """The folder of the files, if kernels read them."""
        # A mapping keeps a descriptor of its file, beside RocksDB's own.
        read = self._options.mapped and not self._options.salvaging and raise_limit() >= PLENTY
        return self.path if read else None

    def attach(self, name: str, schema: Schema) -> RocksStore:
        """Return the store of an existing column family: always the same, because it has files open."""
        if (known := self._stores.get(name)) is not None and known.schema == schema:
            return known
        store = RocksStore(
            self.column_families,
            name,
            schema,
            self._creators.get(name, self._creator),
            path=self.path,
            options=self._options,
            readers=self.readers,
            threads=self.threads,
            limits=self.limits,
            bound_metadata=self.bound_metadata,
            partitioned=name in self._partitioned,
            folder=self._folder,
        )
        if store.made:
            _ = store.family  # raises an error if the database has none of this name
        with uninterrupted(), self._naming:
            self._stores[name] = store
        return store

    def drop(self, name: str) -> None:
        """Delete a column family."""
        self._creators.pop(name, None)
        with uninterrupted(), self._naming:
            if name in self._stores:
                self._stores.pop(name).close()
            self._partitioned.discard(name)  # a new one of this name begins with whole filters and indexes
        with translated(f"drop {name!r}"):
            self.column_families.drop(name)

    def checkpoint(self, path: Path) -> None:
        # It costs hard links.
        with translated(f"checkpoint to {path}"):
            try:
                self.column_families.checkpoint(path)
            except Exception as error:
                if os.strerror(errno.EMLINK) not in str(error):  # RocksDB tells its errors in words
                    raise
                renew_full(self.path, "*.sst")
                self.column_families.checkpoint(path)

    @staticmethod
    def families(path: Path) -> list[str]:
        with translated(f"read {path}"):
            return [name for name in rd.Rdict.list_cf(str(path)) if name != "default"]

    @staticmethod
    def amend(path: Path, drop: Iterable[str], added: Iterable[tuple[str, SortedFile]]) -> None:
        amend(path, drop, added)

    def resume(self) -> None:
        # RocksDB looks every 5 seconds whether there is space again, and then goes on by itself.
        unlogged, until = rd.WriteOptions(), time.monotonic() + RESUME_SECONDS
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        while True:
            try:
                with translated(f"write to {self.path}"):
                    # Refused as long as RocksDB is stopped, as a flush is only if there is something to flush.
                    self.column_families.db.write(rd.WriteBatch(raw_mode=True), unlogged)
                return
            except ColdStoreError:
                if time.monotonic() > until:
                    raise
            time.sleep(RESUME_TURN_SECONDS)

    def sorted_file(self, path: Path, schema: Schema, creator: RocksDBCreator) -> SortedFile:
        if creator.compression == "none":
            return TableWriter(path, schema, creator)
        return RocksSortedFile(
            path, schema, rd.SstFileWriter(self._options.of_family(creator, partitioned=False)), self.limits.batch_rows
        )

    def ingest(self, name: str, path: Path) -> None:
        # It costs two hard links, whatever the size of the file: RocksDB moves a second name of it, or copies the file.
        link = path.with_suffix(".link.sst")
        with translated(f"ingest {path} into {name!r}"):
            link.unlink(missing_ok=True)  # left by a process that was killed here
            try:
                moved = linked(path, link)
                self._stores[name].ingest(link if moved else path, move=moved)
            finally:
                link.unlink(missing_ok=True)

    def crowded(self, name: str) -> bool:
        # RocksDB slows writes down at rocks_options.SLOW_FILES in level 0.
        if not self.column_families.made(name):
            return False
        store = self._stores[name]
        return store.files_to_merge() > self.limits.crowded_files and store.merging()

    def bound_metadata(self) -> None:
        """Write new files with partitioned filters and indexes once those held whole exceed their share of memory.

        Filters and indexes of mapped files do not count, because they take no memory of the process.
        """
        if self._options.mapped:
            return
        with uninterrupted(), self._naming:
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


def _bypasses(path: Path, page_cache: int) -> bool:
    """Whether a database's files are larger than the page cache, and its file system can be read past it."""
    files = list(path.glob("*.sst"))
    with suppress(OSError):  # tmpfs has no direct reads; if a file is missing, RocksDB says so
        if hasattr(os, "O_DIRECT") and sum(file.stat().st_size for file in files) > page_cache:
            os.close(os.open(files[0], os.O_RDONLY | os.O_DIRECT))
            return True
    return False
