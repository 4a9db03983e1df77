"""Creating rows: the embedding is from the initializer or the caller, the slots are from the optimizer."""

from __future__ import annotations

import numpy as np

from kvemb.contracts import RowKernels, Values
from kvemb.initializers import Initializer
from kvemb.initializers.base import Fixed
from kvemb.optimizers import Optimizer
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys
from kvemb.rows.names import with_names
from kvemb.rows.schema import Schema


class RowFactory:
    """Makes rows of one schema.

    optimizer: that of the variable, None for none. matching: the same, if it has slots that must be set whenever an
    embedding is set (Optimizer.match), else None.
    """

    def __init__(
        self, schema: Schema, initializer: Initializer, optimizer: Optimizer | None, kernels: RowKernels
    ) -> None:
        self._schema, self.kernels = schema, kernels
        self.set_initializer(initializer)
        self.set_optimizer(optimizer)

    def set_initializer(self, initializer: Initializer) -> None:
        """Use this initializer's embeddings from now on."""
        self._initializer = initializer
        self._every_row: Values | None = None
        if isinstance(initializer, Fixed):
            first = np.zeros(1, np.int64)
            self._every_row = self._unnamed(initializer.rows(first, self._schema.dim, self._schema.value_dtype))

    def set_optimizer(self, optimizer: Optimizer | None) -> None:
        """Use this optimizer from now on, and its initial slots for new rows."""
        self.optimizer, self._slots = optimizer, () if optimizer is None else optimizer.slots
        self.matching = None if optimizer is None or optimizer.match is None else optimizer

    def embeddings(self, keys: Keys) -> Values:
        """Return the initializer's rows of keys (n, schema.width); their names are zeros."""
        if self._every_row is not None:
            return self._every_row.repeat(len(keys), axis=0)
        return self._unnamed(self._initializer.rows(keys, self._schema.dim, self._schema.value_dtype))

    def _unnamed(self, values: Values) -> Values:
        if not self._schema.name_bytes:
            return values
        return with_names(values, np.zeros((len(values), self._schema.name_bytes), np.uint8))

    def rows(self, keys: Keys, values: Values, score: float, step: int) -> RowBlock:
        """Return new, dirty rows: keys (n,), values (n, dim), initial slots, this score, this step of last change.

        values (n, schema.width): with the rows' names.
        """
        rows = RowBlock(self._schema, len(keys))
        rows.keys[:] = keys
        self.kernels.assign(rows, np.arange(len(keys)), values, step)
        for number, slot in enumerate(self._slots):
            rows.slot(number)[:] = slot.initial
        if self.matching is not None:
            self.kernels.match(rows, np.arange(len(keys)), self.matching, step)
        rows.scores[:] = score
        return rows
