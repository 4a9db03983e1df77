"""The interfaces of cold stores, and of the database they are in.

Implementations do not lock unless a docstring says so; the tier that owns them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvemb.rows.block import RowBlock
from kvemb.rows.codec import LAST_KEY
from kvemb.rows.hashing import Keys
from kvemb.rows.schema import Schema

Mask = npt.NDArray[np.bool_]


class Gap(NamedTuple):
    """A range of ordered keys (codec.order_keys), both ends included."""

    first: int
    last: int


class Family(NamedTuple):
    """A cold store of a database that is about to be opened. record_bytes: bytes of a row on disk, key included."""

    creator: Any
    rows: int = 0
    record_bytes: int = 0


class ColdStore(Protocol):
    """Rows of one variable by key. The store that owns it makes them durable."""

    schema: Schema

    def fill(self, rows: RowBlock) -> Mask:
        """Fill in those of the rows that are here, by their keys; returns found (n,) bool. Others stay as they are.

        Safe from several threads. Raises Corruption or ColdStoreError; then any of the rows may be filled in.
        """

    def read(self, keys: Keys) -> tuple[RowBlock, Mask]:
        """Return the rows that are here, in the order of keys, and found (n,) bool. Otherwise like fill()."""
        rows = RowBlock.with_keys(self.schema, keys)
        found = self.fill(rows)
        return rows if found.all() else rows.select(found), found

    def write(self, rows: RowBlock) -> int:
        """Replace rows, in any order; delete those flagged REMOVED. Of a key's rows the last one counts.

        Returns how many keys that are. For RocksDB this makes a file. Raises ColdStoreError unless all of it was
        written.
        """

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        """Yield the rows between two ordered keys (codec.order_keys), both included, in key order.

        The rows are as they were at the call of scan; later writes do not show.
        """

    def splits(self, parts: int) -> list[int]:
        """Return at most parts - 1 ordered keys (codec.order_keys), ascending, that split the rows into equal parts.

        Each key is the first of its part. The sizes are estimated without reading rows.
        """

    def compact(self, report: Callable[[int, int], None]) -> None:
        """Rewrite the files without replaced and removed rows. report(done, total): called with numbers of parts.

        Raises ColdStoreError.
        """

    def rescue(self, batch_rows: int) -> Iterator[RowBlock | Gap]:
        """Yield, in key order, the rows that can be read and the ranges of keys whose rows cannot.

        A row is left out if a newer version of it may be among those that cannot be read. REQUIRES: the database was
        opened with salvaging=True.
        """

    def clear(self) -> None:
        """Delete every row. Raises ColdStoreError; then they may be deleted, or be deleted later."""

    def disk_bytes(self) -> int:
        """Return roughly how many bytes its files take now."""


class SortedFile(Protocol):
    """A file of rows of one variable in key order, which a cold store can ingest whole. kvemb writes it, or RocksDB.

    first, last: its first and last key, as encoded (codec.encode_keys).
    """

    path: Path
    rows: int
    first: bytes
    last: bytes

    def append(self, rows: RowBlock) -> None:
        """Append rows whose keys ascend and are larger than those before. Raises ColdStoreError.

        The cold store that ingests the file deletes the rows flagged REMOVED.
        """

    def finish(self) -> None:
        """Complete the file, which must not be empty, and sync it. Raises ColdStoreError."""


class ColdDatabase(Protocol):
    """The database of a store's cold rows: one cold store per variable, all made durable together.

    A contract, although backends/rocks.py alone implements it: the core imports no RocksDB.
    """

    @property
    def read_mode(self) -> str:
        """How its files are read now: "mmap", "pread" or "direct"."""

    def create(self, name: str, schema: Schema, creator: Any) -> ColdStore:
        """Make an empty cold store."""

    def attach(self, name: str, schema: Schema) -> ColdStore:
        """Return an existing cold store."""

    def drop(self, name: str) -> None:
        """Delete a cold store."""

    def checkpoint(self, path: Path) -> None:
        """Write a durable copy of all cold stores to path, which must not exist. Raises ColdStoreError."""

    @staticmethod
    def families(path: Path) -> list[str]:
        """Return the names of the cold stores in a database. Raises Corruption, ColdStoreError."""

    @staticmethod
    def amend(path: Path, drop: Iterable[str], added: Iterable[tuple[str, SortedFile]]) -> None:
        """Change a copy that checkpoint() wrote, without opening it: drop cold stores, then add files.

        added: names of cold stores, and finished files of newer rows of theirs, which are moved. Rows of later files
        replace those of earlier ones. Raises Corruption, ColdStoreError.
        """

    def resume(self) -> None:
        """Go on after a failure, such as of a full disk. Raises ColdStoreError."""

    def sorted_file(self, path: Path, schema: Schema, creator: Any) -> SortedFile:
        """Create an empty file for rows in key order."""

    def ingest(self, name: str, path: Path) -> None:
        """Replace rows of a cold store by those of a finished SortedFile, which is not moved.

        Raises ColdStoreError; then no row has been replaced.
        """

    def crowded(self, name: str) -> bool:
        """Whether so many files wait to be merged that writers will soon be slowed down."""

    def close(self) -> None:
        """Release the files."""
