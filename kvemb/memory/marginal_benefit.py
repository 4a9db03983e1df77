"""The marginal benefit of a hot table's cells: uses of its least valuable rows per row offered to full tables.

The rows that further cells would hold are used about as often as these. So the benefit is both the cost of shrinking
and the gain of growing. It is measured on a sample of cells. With every policy, a row counts as used if its score has
changed, even if it was evicted meanwhile and is offered again. The variable's lock guards everything here.
"""

from __future__ import annotations

import math

import numpy as np

from kvemb.contracts import HotTable
from kvemb.restrict import Scores
from kvemb.rows.hashing import KeyIndex, Keys

# Cells in a sample; of these, the 1/WATCHED_PART with the lowest scores is watched. Empty cells score lowest.
SAMPLE_CELLS, WATCHED_PART = 8192, 4
# A measurement waits until ENOUGH_USES watched rows, or a quarter of the watched rows if that is less, were used,
# because fewer uses are not significant. It waits for at most MAX_WAITS calls; the first measurement does not wait.
ENOUGH_USES, MAX_WAITS = 16, 8
# The golden ratio spreads successive samples over the table.
_SPREAD = 0.6180339887498949


class MarginalBenefit:
    """The marginal benefit of one table's cells."""

    def __init__(self, table: HotTable) -> None:
        self._table = table
        self._keys: Keys = np.empty(0, np.int64)
        self._scores: Scores = np.empty(0)
        self._index, self._offered = KeyIndex(1), np.zeros(0, np.bool_)
        self._watched_cells, self._since, self._at = 0, 0, 0.0
        self._waits, self._missed = 0, 0.0
        self._last: float | None = None

    def measure(self, work: int, missed: float) -> float | None:
        """Return the benefit of a cell in uses per row of work, a moving average over measurements; None at the first.

        work: the budget's count of rows offered, as a clock (Rebalancer.work). missed: uses since the last call that
        one more cell would have served.
        """
        self._waits += 1
        self._missed += missed
        if not self._watched_cells:
            self._watch(work)
        elif work > self._since and self._is_enough(used := self._used()):
            share = min(used / self._watched_cells, 1 - 1 / (2 * self._watched_cells))
            # If uses are a Poisson process, a share 1 - exp(-rate) of the rows has been used at least once.
            now = (-math.log1p(-share) + self._missed) / (work - self._since)
            self._last = now if self._last is None else (self._last + now) / 2
            self._watch(work)
        return self._last

    def _is_enough(self, used: int) -> bool:
        few = self._watched_cells // 4
        return self._last is None or used >= min(ENOUGH_USES, few) or self._waits >= MAX_WAITS

    def offered(self, keys: Keys, scores: Scores) -> None:
        """Record that rows of these keys, with these scores, were not hot and were offered to the table."""
        if len(self._keys):
            found = self._index.find(self._keys, keys)
            here = (found >= 0).nonzero()[0]
            watched = found[here]
            self._offered[watched[scores[here] != self._scores[watched]]] = True

    def _used(self) -> int:
        """Return how many of the watched rows have been used since they were chosen."""
        cells = self._table.find(self._keys)
        here = (cells >= 0).nonzero()[0]
        self._offered[here[self._table.scores(cells[here]) != self._scores[here]]] = True
        return int(np.count_nonzero(self._offered))

    def _watch(self, work: int) -> None:
        self._waits, self._missed = 0, 0.0
        self._at = (self._at + _SPREAD) % 1.0
        cells = min(SAMPLE_CELLS, self._table.capacity_rows)
        keys, scores = self._table.sample(self._at, SAMPLE_CELLS)
        watched = max(1, cells // WATCHED_PART)
        lowest = max(0, watched - (cells - len(keys)))
        chosen = np.argpartition(scores, lowest - 1)[:lowest] if 0 < lowest < len(keys) else np.arange(lowest)
        keys, index = keys[chosen], KeyIndex(max(1, len(chosen)))
        index.put(keys, 0, len(chosen))
        # Assigned together: if memory is lacking for one of them, the previous rows are still watched.
        watched_scores, offered = scores[chosen], np.zeros(len(chosen), np.bool_)
        self._keys, self._index, self._scores, self._offered = keys, index, watched_scores, offered
        self._watched_cells, self._since = watched, work
