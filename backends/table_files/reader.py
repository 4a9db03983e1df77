"""Reads of one family: which version of its files counts, and the kernel's calls.

Files never change, so a version is never wrong, only old: a merge makes other files of the same rows. What changes
rows, a new file or an empty family, is told to this reader, and ends the use of all versions that were read before it
had ended. When a merge is noticed decides only how long its old files take up the disk. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvemb.backends.table_files import reading
from kvemb.backends.table_files.listing import runs_of
from kvemb.backends.table_files.table_file import TableFile, Unreadable
from kvemb.kernels.xxh3 import SECRET
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered, order_keys, record_dtype
from kvemb.threads.disk_waits import KEYS_PER_WAIT, disk_waits

if TYPE_CHECKING:
    from rocksdict import Rdict

# How often a list of files is asked for again, because one of them was merged before it could be mapped.
_TRIES = 3
# After so many changes without a read between them, the files are let go: those that RocksDB deleted take up the disk.
_CHANGES = 4
# A read that took no longer than this, and this for each key, waited for no disk, and the system need not be asked.
_SECONDS, _SECONDS_PER_KEY = 1e-4, 4e-6
_VERSION = "rocksdb.current-super-version-number"
_secret = SECRET.ctypes.data
_logger = logging.getLogger("kvemb")


class _Version:
    """Files of a moment: int64 (f, COLUMNS), uint64 (f, 2) and int64 (runs + 1,), as reading.read_rows takes them.

    readable: False if RocksDB must read this family. number: RocksDB's of the moment, which changes with the files.
    """

    def __init__(self, number: int | None, generation: int) -> None:
        self.number, self.generation, self.readable = number, generation, False
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


# What is known of each key (n,): reading.UNKNOWN, FOUND, REMOVED, or ASK (RocksDB knows).
States = npt.NDArray[np.uint8]
# Calls a function for parts of a range, from 0 to a number, each with its begin and end; on threads, if that pays.
Spread = Callable[[Callable[[int, int], None], int], None]


class TableReader:
    """Reads rows of one family from its files.

    name: for messages. folder: the database's. Changes to the family come one at a time; reads may come meanwhile.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._loading, self._changing = threading.Lock(), threading.Lock()
        self._version: _Version | None = None
        self._generation = 0  # grows when rows change
        self._asks, self._waits, self._changes = True, disk_waits(), 0

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change the family's rows in the block."""
        try:
            yield
        finally:
            with self._changing:
                self._generation += 1
                self._changes += 1
                if self._changes > _CHANGES:
                    self._version = None

    def let_go(self) -> None:
        """Let go of the files. Reads in progress keep theirs."""
        self._version = None

    # Versions.

    def _current(self, family: Rdict) -> _Version | None:
        """Return a version with all changes that have ended; None if there is none."""
        number = family.property_int_value(_VERSION)
        version = self._usable()
        if version is not None and (version.number == number or self._loading.locked()):
            return version  # another thread loads a newer one
        with self._loading:
            version = self._usable()
            return version if version is not None and version.number == number else self._load(family)

    def _usable(self) -> _Version | None:
        """Return the last version, if no change has ended its use."""
        version = self._version
        return version if version is not None and version.generation == self._generation else None

    def _load(self, family: Rdict) -> _Version | None:
        """Read a version from RocksDB. REQUIRES: _loading."""
        for _ in range(_TRIES):
            generation, known = self._generation, self._version  # before the files are listed
            version = _Version(family.property_int_value(_VERSION), generation)
            listing = family.property_value("rocksdb.sstables") or ""
            try:
                version.take(self._folder, listing, known.files if known is not None else {})
            except FileNotFoundError:
                continue
            except Unreadable as reason:
                _logger.debug("RocksDB reads the rows of %r: %s", self._name, reason)
            with self._changing:
                if generation == self._generation:
                    self._version = version
            return version
        return None

    # Reads.

    def read(self, family: Rdict, rows: RowBlock, states: States, spread: Spread) -> bool:
        """Fill in the rows of those keys of the block whose state is UNKNOWN, and their states.

        Keys are in any order, and may be repeated. Returns False, and changes nothing, if RocksDB must read them.
        Raises Corruption.
        """
        self._changes = 0
        version = self._current(family)
        if version is None or not version.readable:
            return False
        keys, to = order_keys(rows.keys, rows.schema), np.arange(len(rows))
        in_order = states
        if np.count_nonzero(keys[1:] < keys[:-1]):
            to = np.argsort(keys)
            keys, in_order = keys[to], states[to]
        self._read(version, keys, to, in_order, rows, spread)
        if in_order is not states:
            states[to] = in_order
        return True

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
