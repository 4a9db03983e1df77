"""What tiering and durability ask of cold stores, of the database they are in, and of the logs beside them.

None of them locks, but where it says so: the tier that owns it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvemb.rows.block import RowBlock
from kvemb.rows.codec import LAST_KEY, Ordered
from kvemb.rows.hashing import Keys
from kvemb.rows.schema import Schema

Mask = npt.NDArray[np.bool_]


class Gap(NamedTuple):
    """A range of keys (codec.order_keys), both ends included."""

    first: int
    last: int


class Family(NamedTuple):
    """A cold store of a database that is about to be opened. record_bytes: of one row on disk, its key included."""

    creator: Any
    rows: int = 0
    record_bytes: int = 0


class ColdStore(Protocol):
    """Rows of one variable by key, durable only as the store that owns it makes them."""

    def read(self, keys: Keys) -> tuple[RowBlock, Mask]:
        """Read rows by key. Returns the rows found, in the order of keys, and found (n,) bool.

        Safe from several threads. Raises Corruption or ColdStoreError.
        """

    def write(self, rows: RowBlock) -> None:
        """Replace rows; those flagged REMOVED are deleted. Raises ColdStoreError when not all of it was taken."""

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        """Yield the rows between two keys (codec.order_keys), both included, in key order.

        The rows are those at the call of scan, whatever is written meanwhile.
        """

    def splits(self, parts: int) -> list[int]:
        """Return at most parts - 1 keys (codec.order_keys), ascending, that split the rows into parts of like size.

        An estimate, without reading rows. Each key is the first of its part.
        """

    def compact(self, report: Callable[[int, int], None]) -> None:
        """Drop what was replaced and removed from its files. report(done, total): called with parts.

        Raises ColdStoreError.
        """

    def rescue(self, batch_rows: int) -> Iterator[RowBlock | Gap]:
        """Yield the rows that can be read, in key order, and the ranges of keys whose rows cannot be.

        A row that may be older than one that cannot be read is not given. The database was opened with salvaging=True.
        """

    def clear(self) -> None:
        """Delete every row."""

    def disk_bytes(self) -> int:
        """Bytes its files take now, roughly."""


class Recorder(Protocol):
    """Keeps which rows of one variable changed."""

    def record(self, keys: Ordered) -> None:
        """Rows of these keys (codec.order_keys), in any order, change in the cold store. Raises OSError."""

    def record_cleared(self) -> None:
        """Record that every row was removed."""

    def sealed_epochs(self) -> int:
        """Return how often what was recorded has been taken for a durable point."""


class WriteLog(Protocol):
    """Makes the writes of one variable durable one by one."""

    def rows(self, rows: RowBlock, step: int) -> None:
        """These rows were written; step: the tier's. Raises ColdStoreError."""

    def removed(self, keys: Ordered, step: int) -> None:
        """Rows of these keys (codec.order_keys) were removed. Raises ColdStoreError."""

    def cleared(self, step: int) -> None:
        """Every row was removed. Raises ColdStoreError."""

    def counted(self, optimizer_steps: int, step: int) -> None:
        """The optimizer has taken so many steps. Raises ColdStoreError."""

    def commit(self) -> None:
        """Wait until what was logged is on disk. Not under the tier's lock. Raises ColdStoreError."""


class SortedFile(Protocol):
    """Rows of one variable in key order, in a file that cold stores take in whole."""

    path: Path
    rows: int

    def append(self, rows: RowBlock) -> None:
        """Write rows whose keys ascend, beyond the last one's; those flagged REMOVED are deleted by the cold store that
        takes them in. Raises ColdStoreError.
        """

    def finish(self) -> None:
        """Complete the file, which must not be empty, and sync it. Raises ColdStoreError."""


class ColdDatabase(Protocol):
    """What keeps a store's cold rows together: one cold store a variable, made durable at once."""

    def create(self, name: str, schema: Schema, creator: Any) -> ColdStore:
        """Make an empty cold store."""

    def attach(self, name: str, schema: Schema) -> ColdStore:
        """Return a cold store that is there."""

    def drop(self, name: str) -> None:
        """Delete a cold store."""

    def checkpoint(self, path: Path) -> None:
        """Write all cold stores as they are to path, which must not exist, durably. Raises ColdStoreError."""

    @classmethod
    def families(cls, path: Path) -> list[str]:
        """Return the names of the cold stores in a database. Raises Corruption, ColdStoreError."""

    @classmethod
    def amend(cls, path: Path, drop: list[str], files: dict[str, list[Path]]) -> None:
        """Finish what checkpoint() wrote: drop cold stores, and take in sorted files, later ones over earlier ones.

        The files are moved.
        """

    def flush(self) -> None:
        """Write what is in memory to files, so that a checkpoint() that follows is quick. Raises ColdStoreError."""

    def sorted_file(self, path: Path, schema: Schema, creator: Any) -> SortedFile:
        """Begin a file of rows in key order."""

    def ingest(self, name: str, path: Path) -> None:
        """Replace rows of a cold store by those of a finished SortedFile, which stays where it is.

        Raises ColdStoreError; then none is replaced.
        """

    def crowded(self, name: str) -> bool:
        """Whether so many files wait to be merged that writers will soon be slowed."""

    def close(self) -> None:
        """Release the files."""
