"""A slot of an optimizer as a table of its own: the same keys, read-only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.engine.table import Table


class SlotVariable:
    """Show one slot of every row of a variable, as a read-only table of the same keys.

    ``Variable.get_slot_variables`` returns them. Training changes the slots; ``restrict`` and ``remove`` drop them with
    their rows. Thread-safe.

    Attributes:
        name: The slot's name, such as ``"accumulator"``.
        dim: The number of elements of the slot in each row.
    """

    def __init__(self, table: Table, name: str, dim: int) -> None:
        self._table, self.name, self.dim = table, name, dim

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of its elements: float32, or float64 for float64 values."""
        return self._table.schema.slot_dtype

    def lookup(self, keys: npt.ArrayLike) -> npt.NDArray[Any]:
        """Look up the slots of keys. It counts as no use.

        Args:
            keys: Keys of any shape. Missing keys have the slots of a new row.

        Returns:
            A copy, ``keys.shape + (dim,)`` in ``value_dtype``.

        Raises:
            TypeError: A conversion of keys would lose information.
            Closed: The store is closed.
            Corruption: Bytes on disk differ from what was written.
        """
        return self._table.slot(self.name, keys)

    def size(self) -> int:
        """Count the rows.

        Returns:
            The number of rows of the variable.

        Raises:
            Closed: The store is closed.
        """
        self._table.storage.state.check_open()
        return self._table.storage.size

    def __repr__(self) -> str:
        return f"<slot {self.name!r} of {self._table.name!r}: {self.dim} x {self.value_dtype.name}>"
