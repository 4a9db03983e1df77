"""A variable's constraint: it projects the rows that an optimizer changed; if it fails, the step is undone.

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
from kvemb.tiers.locate import Located

# fn(values (n, dim)) -> projected values (n, dim), row by row.
Constraint = Callable[[npt.NDArray[Any]], npt.ArrayLike]


class ConstraintProjector:
    """Applies a constraint to rows: hot rows in their cells, other rows in blocks."""

    def __init__(self, constraint: Constraint, hot_tables: HotTables, kernels: RowKernels) -> None:
        self._constraint, self._hot_tables, self._kernels = constraint, hot_tables, kernels

    def copies(self, at: Located) -> RowBlock:
        """Return copies of the hot rows of `at`, at their positions in at.keys."""
        whole = RowBlock(self._hot_tables.tables[0].schema, len(at.keys))
        rows, hot = RowBlock.joined(list(self._hot_tables.read(at.cells, at.owners)), whole.schema), at.hot
        whole.put(hot[np.argsort(at.keys[hot])], rows.select(np.argsort(rows.keys)))
        return whole

    def project(self, at: Located, before: RowBlock, step: int) -> Positions:
        """Project rows that were just changed; return the positions in at.keys of the rows that the projection changed.

        If the constraint fails, hot rows are restored from `before`.
        """
        try:
            values, moved = self._projected(at)
        except BaseException:
            self._hot_tables.put(at.cells, at.owners, before)
            raise
        self._hot_tables.assign(at.cells, at.owners, values, step)
        self._kernels.assign(at.rows, np.arange(len(at.rows)), values[at.cold], step)
        return moved

    def _projected(self, at: Located) -> tuple[Values, Positions]:
        schema = self._hot_tables.tables[0].schema
        values = np.zeros((len(at.keys), schema.dim), schema.value_dtype)  # zeros for keys that were not admitted
        self._hot_tables.gather(at.cells, at.owners, values)
        values[at.cold] = at.rows.embeddings()
        given = self._constraint(values.copy())
        projected = as_values(given, schema.value_dtype, values.shape, "constraint's result", "(n, dim)")
        return projected, np.flatnonzero((projected != values).any(axis=1))
