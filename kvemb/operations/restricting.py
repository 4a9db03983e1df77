"""Restricting one variable, over both tiers, in memory that does not depend on the number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kvemb.operations.scoring import Scorer
from kvemb.operations.selection import ScoreLimit, ScoreSpool, lowest_kept
from kvemb.progress import Meter, Progress
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.tiers.storage import TieredStorage


class Restriction:
    """Ranks all rows of a variable, spools the ranks to disk, and removes the rows below a limit.

    Dirty rows are written first, so that one scan of the cold store sees every score. The scan spools 16 bytes a row to
    a temporary file in scratch, from which the limit is found. One limit may apply to several variables that share a
    table's rows: see kvemb.operations.selection.lowest_kept. alive: how many of the ranked rows have not expired.
    counts, matching: the methods of the spool. ended: called by close(). REQUIRES: no row changes from rank() to
    remove_below().
    """

    def __init__(
        self, storage: TieredStorage, scoring: Scorer, scratch: Path | None, ended: Callable[[], None] = lambda: None
    ) -> None:
        self._storage, self._scoring, self._spool, self._ended = storage, scoring, ScoreSpool(scratch), ended
        self.counts, self.matching = self._spool.counts, self._spool.matching
        self.alive = 0

    def close(self) -> None:
        """Delete the spool. To be called once."""
        self._spool.close()
        self._ended()

    @property
    def rows(self) -> int:
        """How many rows were ranked."""
        return len(self._spool)

    def keep_highest(self, rows: int, progress: Progress | None) -> None:
        """Keep the `rows` rows that rank highest, but none that have expired; of equal ranks, the larger keys.

        REQUIRES: writing_without_snapshot().
        """
        size = self._storage.size
        meter = Meter(2 * size - min(rows, size), progress)
        self.rank(meter)
        keep = min(rows, self.alive)
        if keep < self.rows:
            self.remove_below(self.limit(keep) if keep else None, meter)

    def count_removals(self, rows: int, progress: Progress | None) -> int:
        """Return how many rows keep_highest would remove now. Takes the lock; changes nothing."""
        self._rank(self._storage.scan(self._storage.limits.call_rows), Meter(self._storage.size, progress))
        return max(0, self.rows - min(rows, self.alive))

    def rank(self, meter: Callable[[int], None]) -> None:
        """Rank every row, dirty ones included. REQUIRES: writing_without_snapshot()."""
        self._storage.write_dirty()
        self._rank(self._storage.cold.scan(self._storage.limits.call_rows), meter)

    def _rank(self, scan: Iterator[RowBlock], meter: Callable[[int], None]) -> None:
        least = self._scoring.min_score(self._storage.step)
        for found in scan:
            ranks = self._scoring.ranking(found)
            self.alive += int(np.count_nonzero(ranks >= least))
            self._spool.append(ranks, order_keys(found.keys, self._storage.schema))
            meter(len(found))

    def limit(self, keep: int) -> ScoreLimit:
        """Return the limit that keeps `keep` of these rows. REQUIRES: keep is at least 1."""
        return lowest_kept(self.counts, self.matching, keep)

    def remove_below(self, limit: ScoreLimit | None, meter: Callable[[int], None]) -> None:
        """Remove the rows below a limit (None: all rows). REQUIRES: writing_without_snapshot()."""
        for ordered in self._spool.below(limit):
            self._storage.remove(unordered_keys(ordered, self._storage.schema))
            meter(len(ordered))
        self._storage.write_dirty()
