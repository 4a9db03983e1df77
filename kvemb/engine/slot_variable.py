"""A slot of an optimizer as a table of its own: the same keys, read-only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.engine.table import Table


class SlotVariable:
    """One slot of every row of a variable. Training changes it; restrict and remove drop it with the row.

    name: the slot's name. dim: the number of elements in it. Thread-safe.
    """

    def __init__(self, table: Table, name: str, dim: int) -> None:
        self._table, self.name, self.dim = table, name, dim

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return self._table.schema.slot_dtype

    def lookup(self, keys: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return keys.shape + (dim,); see Variable.lookup_slot."""
        return self._table.slot(self.name, keys)

    def size(self) -> int:
        """Return the number of rows."""
        self._table.storage.state.check_open()
        return self._table.storage.size

    def __repr__(self) -> str:
        return f"<slot {self.name!r} of {self._table.name!r}: {self.dim} x {self.value_dtype.name}>"
