"""A variable's constraint: it projects the rows that an optimizer changed; if it fails, their step is undone.

The variable's lock guards everything here. The constraint is the user's function, so its errors do not poison the
store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import RowKernels, Values
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Positions
from kvemb.rows.host_arrays import as_values
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.located import Located

# fn(values (n, dim)) -> projected values (n, dim), row by row.
Constraint = Callable[[npt.NDArray[Any]], npt.ArrayLike]


class ConstraintProjector:
    """Applies a constraint to rows: hot rows in their cells, other rows in blocks."""

    def __init__(self, constraint: Constraint, hot_tables: HotTables, kernels: RowKernels) -> None:
        self._constraint, self._hot_tables, self._kernels = constraint, hot_tables, kernels

    def copies(self, found: Located) -> RowBlock:
        """Return copies of the hot rows of `found`, at their positions in found.keys."""
        whole = RowBlock(self._hot_tables.schema, len(found.keys))
        rows, hot = RowBlock.joined(list(self._hot_tables.read(found.cells, found.owners)), whole.schema), found.hot
        whole.put(hot[np.argsort(found.keys[hot])], rows.select(np.argsort(rows.keys)))
        return whole

    def project(self, found: Located, before: RowBlock, step: int) -> tuple[Positions, Exception | None]:
        """Project rows that were just changed; return the positions in found.keys of those that this changed.

        If the constraint fails, hot rows are restored from `before`; returns its error, too.
        """
        try:
            values, moved = self._projected(found)
        except Exception as error:
            self._hot_tables.put(found.cells, found.owners, before)
            return np.empty(0, np.int64), error
        self._hot_tables.assign(found.cells, found.owners, values, step)
        self._kernels.assign(found.rows, np.arange(len(found.rows)), values[found.cold], step)
        return moved, None

    def _projected(self, found: Located) -> tuple[Values, Positions]:
        schema = self._hot_tables.schema
        values = np.zeros((len(found.keys), schema.dim), schema.value_dtype)  # zeros for keys that were not admitted
        self._hot_tables.gather(found.cells, found.owners, values)
        values[found.cold] = found.rows.embeddings()
        given = self._constraint(values.copy())
        projected = as_values(given, schema.value_dtype, values.shape, "constraint's result", "(n, dim)")
        return projected, np.flatnonzero((projected != values).any(axis=1))
