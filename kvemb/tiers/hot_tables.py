"""The hot tables of one variable, one a device, seen as one: which table a key belongs to, growth, totals.

The partitioner divides the hot tier only; the cold store is common. The tier's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import HotTable
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Positions
from kvemb.rows.schema import public_keys
from kvemb.tiers.budget import Budget

Partitioner = Callable[[npt.NDArray[Any], int], npt.ArrayLike]
# Each key's table number (n,); None: all belong to the first.
Owners = npt.NDArray[np.int64] | None


def default_partitioner(keys: npt.NDArray[Any], shard_num: int) -> npt.NDArray[Any]:
    """Return keys % shard_num, the floor's remainder, so never negative."""
    return keys % shard_num


class HotTables:
    """Hot tables with a partitioner over them.

    public_dtype: the dtype in which the partitioner sees keys. budget pays for growth; growing: whether tables may
    double.
    """

    def __init__(
        self,
        tables: list[HotTable],
        partitioner: Partitioner,
        public_dtype: np.dtype[Any],
        budget: Budget,
        *,
        growing: bool,
    ) -> None:
        self.tables = tables
        self._partitioner, self._public_dtype = partitioner, public_dtype
        self._reserve = budget.try_grow if growing else None

    def of(self, keys: Keys) -> Owners:
        """Return whose each key is. Raises ValueError when a number is out of range, and what the partitioner does."""
        count = len(self.tables)
        if count == 1 and self._partitioner is default_partitioner:
            return None
        given = np.asarray(self._partitioner(public_keys(keys, self._public_dtype), count))
        if given.shape != keys.shape or given.dtype.kind not in "iu":
            raise ValueError(
                f"partitioner must return an integer array of shape {keys.shape}, got {given.dtype} {given.shape}"
            )
        if len(given) and (int(given.min()) < 0 or int(given.max()) >= count):
            raise ValueError(
                f"partitioner must return numbers from 0 to {count - 1}, got {int(given.min())} to {int(given.max())}"
            )
        return given.astype(np.int64)

    def split(self, keys: Keys) -> Iterator[tuple[HotTable, Any]]:
        """Yield each table with the places in keys that are its own: a slice when there is one table, else indexes."""
        return self.parts(self.of(keys))

    def parts(self, owners: Owners) -> Iterator[tuple[HotTable, Any]]:
        """See split(). Asks no partitioner, so it cannot fail half-way through a call."""
        if owners is None or len(self.tables) == 1:
            yield self.tables[0], slice(None)
            return
        for number, table in enumerate(self.tables):
            places = np.flatnonzero(owners == number)
            if len(places):
                yield table, places

    def find(self, keys: Keys, owners: Owners) -> Positions:
        """Return each key's cell in its own table, -1 where it is not hot."""
        cells = np.empty(len(keys), np.int64)
        for table, places in self.parts(owners):
            cells[places] = table.find(keys[places])
        return cells

    def insert(self, rows: RowBlock, owners: Owners, *, by_score: bool = False) -> Iterator[tuple[Keys, RowBlock]]:
        """Insert rows that are not hot, growing where that is due, one table after the other.

        Yields the keys that a table was offered and the dirty rows that had to leave it.
        """
        for table, part in [(table, _part(rows, places)) for table, places in self.parts(owners)]:
            yield part.keys, table.insert(part, by_score=by_score, reserve=self._reserve)

    @property
    def size(self) -> int:
        """Rows in all tables."""
        return sum(table.size for table in self.tables)

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return sum(table.nbytes for table in self.tables)


def _part(rows: RowBlock, places: Any) -> RowBlock:
    return rows if isinstance(places, slice) else rows.select(places)
