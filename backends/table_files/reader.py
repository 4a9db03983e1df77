"""Reads of one family: which version of its files counts, which keys RocksDB must be asked for, and the kernel's calls.

Three rules make it right. A version's floor is read before its list of files, so every entry below the floor is in
these files. What was written above the floor is asked of RocksDB. What changes rows without being counted here, an
ingested file or a range deletion, ends the use of all versions that were read before it had ended.

Then nothing depends on when a flush or a merge is noticed: an old version costs more questions to RocksDB, and holds
files on disk. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvemb.backends.table_files import reading
from kvemb.backends.table_files.listing import runs_of
from kvemb.backends.table_files.table_file import TableFile, Unreadable
from kvemb.backends.table_files.written import WrittenKeys
from kvemb.kernels.xxh3 import SECRET
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered, order_keys, record_dtype
from kvemb.rows.hashing import Keys
from kvemb.rows.schema import Schema
from kvemb.threads.disk_waits import KEYS_PER_WAIT, disk_waits

# How often a list of files is asked for again, because one of them was merged before it could be mapped.
_TRIES = 3
# After so many writes without a read between them, the files are let go: those that RocksDB deleted take up the disk.
_WRITES = 64
# A read that took no longer than this, and this for each key, waited for no disk, and the system need not be asked.
_SECONDS, _SECONDS_PER_KEY = 1e-4, 4e-6
_secret = SECRET.ctypes.data
_logger = logging.getLogger("kvemb")


class _Version:
    """Files of a moment: int64 (f, COLUMNS), uint64 (f, 2) and int64 (runs + 1,), as reading.read_rows takes them.

    readable: False if RocksDB must read this family. number: RocksDB's of the moment, which changes with the files.
    """

    def __init__(self, number: int, floor: int, generation: int) -> None:
        self.number, self.floor, self.generation, self.readable = number, floor, generation, False
        self.files: dict[int, TableFile] = {}
        self.in_order: list[TableFile] = []

    def take(self, folder: Path, listing: str, known: dict[int, TableFile]) -> None:
        """Map the files of a list, those that are not known. Raises Unreadable, Corruption, FileNotFoundError."""
        runs = runs_of(listing)
        listed = [file for run in runs for file in run]
        self.files = {
            file.number: known.get(file.number) or TableFile(folder / f"{file.number:06d}.sst", file.nbytes)
            for file in listed
        }
        self.in_order = [self.files[file.number] for file in listed]
        self.rows = np.array([file.row for file in self.in_order], np.int64).reshape(-1, reading.COLUMNS)
        self.bounds = np.array([(file.first, file.last) for file in listed], np.uint64).reshape(-1, 2)
        self.runs = np.cumsum([0, *map(len, runs)])
        self.readable = True


# What a read found: its rows, of which only those are filled in whose state is FOUND; and states uint8 (n,) of
# reading.UNKNOWN (the key has no row), FOUND, REMOVED, and ASK (RocksDB knows).
Read = tuple[RowBlock, npt.NDArray[np.uint8]]
# Calls a function for parts of a range, from 0 to a number, each with its begin and end; on threads, if that pays.
Spread = Callable[[Callable[[int, int], None], int], None]


class TableReader:
    """Reads rows of one family from its files.

    name: for messages. folder: the database's. count, text: return a property of the family, as a number and as text.
    Changes to the family come one at a time; reads may come meanwhile.
    """

    def __init__(self, name: str, folder: Path, count: Callable[[str], int], text: Callable[[str], str]) -> None:
        self._name, self._folder, self._count, self._text = name, folder, count, text
        self._written = WrittenKeys(self._in_memory)
        self._loading, self._changing = threading.Lock(), threading.Lock()
        self._version: _Version | None = None
        self._generation = 0  # grows when rows change that are not counted
        self._cleared = False  # RocksDB's memory may have a range deletion
        self._asks, self._waits, self._writes = True, disk_waits(), 0

    def _in_memory(self) -> int:
        """Return how many entries are in RocksDB's memory. One that moves meanwhile is counted twice, never left out.

        So the memtable that is written to is asked first: its entries move to the others.
        """
        active = self._count("num-entries-active-mem-table")
        return active + self._count("num-entries-imm-mem-tables")

    # Changes.

    @contextmanager
    def writing(self, keys: Ordered) -> Iterator[None]:
        """Write entries of these keys in the block, one each."""
        with self._written.writing(keys):
            yield
        self._writes += 1
        if self._writes > _WRITES:
            self._version = None

    @contextmanager
    def changing(self, *, cleared: bool = False) -> Iterator[None]:
        """Change rows in the block in another way. cleared: by a range deletion."""
        try:
            yield
        finally:
            with self._changing:
                self._generation += 1
                self._cleared = self._cleared or cleared

    def let_go(self) -> None:
        """Let go of the files. Reads in progress keep theirs."""
        self._version = None

    # Versions.

    def _current(self, too_old: _Version | None = None) -> _Version | None:
        """Return a version to read from, newer than too_old; None: RocksDB's memory may have unknown rows."""
        number = self._count("current-super-version-number")
        version = self._usable(too_old)
        if version is not None and (version.number == number or self._loading.locked()):
            return version  # another thread loads a newer one
        with self._loading:
            version = self._usable(too_old)
            return version if version is not None and version.number == number else self._load()

    def _usable(self, too_old: _Version | None) -> _Version | None:
        """Return the last version, if no change has ended its use."""
        version = self._version
        if version is None or version is too_old or version.generation != self._generation:
            return None
        return version

    def _load(self) -> _Version | None:
        """Read a version from RocksDB. REQUIRES: _loading."""
        for _ in range(_TRIES):
            # The order of these counts: see the top of this file.
            generation, cleared = self._generation, self._cleared
            number, floor = self._count("current-super-version-number"), self._written.floor()
            if floor is None or (cleared and self._in_memory()):
                return None
            version, known = _Version(number, floor, generation), self._version
            try:
                version.take(self._folder, self._text("sstables"), known.files if known is not None else {})
            except FileNotFoundError:
                continue
            except Unreadable as reason:
                _logger.debug("RocksDB reads the rows of %r: %s", self._name, reason)
            with self._changing:
                if generation == self._generation:
                    self._version, self._cleared = version, False
            return version
        return None

    # Reads.

    def read(self, keys: Keys, schema: Schema, spread: Spread) -> Read | None:
        """Read rows by key, in any order, with duplicates; None: RocksDB must read them all. Raises Corruption."""
        self._writes = 0
        version = self._current()
        if version is None or not version.readable:
            return None
        ordered, to = order_keys(keys, schema), np.arange(len(keys))
        if (ordered[1:] < ordered[:-1]).any():
            to = np.argsort(ordered)
            ordered = ordered[to]
        states = np.zeros(len(keys), np.uint8)
        while not self._written.mark(ordered, version.floor, states, reading.ASK):
            version = self._current(too_old=version)
            if version is None or not version.readable:
                return None
        rows = RowBlock.of(
            schema, keys.copy(), np.empty(len(keys)), np.empty(len(keys), np.int64), np.empty(len(keys), np.uint8),
            np.empty((len(keys), schema.row_words), np.uint64),
        )  # fmt: skip
        self._read(version, ordered, to, states, rows, spread)
        in_order = np.empty_like(states)
        in_order[to] = states
        return rows, in_order

    def _read(
        self,
        version: _Version,
        keys: Ordered,
        to: npt.NDArray[np.int64],
        states: npt.NDArray[np.uint8],
        rows: RowBlock,
        spread: Spread,
    ) -> None:
        damages: list[npt.NDArray[np.int64]] = []
        record_bytes, asks, began = record_dtype(rows.schema).itemsize, self._asks, time.perf_counter()

        def read(begin: int, end: int) -> None:
            count, damage = end - begin, np.zeros(4, np.int64)
            reading.read_rows(
                keys[begin:end], version.rows, version.bounds, version.runs, asks, record_bytes, _secret,
                np.empty(count, np.uint64), np.empty(8, np.uint64), np.empty((reading.SCRATCH_ROWS, count), np.int64),
                states[begin:end], to[begin:end], rows.scores, rows.steps, rows.flags, rows.words, damage,
            )  # fmt: skip
            if damage[0] != reading.SOUND:
                damages.append(damage)

        spread(read, len(keys))
        self._asks = time.perf_counter() - began > _SECONDS + len(keys) * _SECONDS_PER_KEY and self._waited(len(keys))
        if damages:
            kind, file, offset, found = damages[0].tolist()
            raise version.in_order[file].damage(self._name, kind, offset, found, record_bytes)

    def _waited(self, keys: int) -> bool:
        """Return whether the process waited for the disk since the last call, and for a part of so many keys."""
        before, self._waits = self._waits, disk_waits()
        return (self._waits - before) * KEYS_PER_WAIT >= keys
