"""Keeping a table within its bounds while other threads use it: no call waits for more than a batch of rows.

kvemb.operations.restricting holds the variable's lock from the first row that it ranks to the last that it removes.
Here rows are ranked and removed a batch at a time, so they may change meanwhile. A row is removed only if it is below
the limit at that moment; rows that came since are counted, but not ranked. So if nobody else changes rows, the result
is that of restricting. The thread rests after each batch for as long as it took, so that callers get half of each core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask
from kvemb.operations.scoring import Scorer
from kvemb.operations.selection import ScoreLimit, ScoreSpool, lowest_kept, order_scores
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered, order_keys, unordered_keys
from kvemb.tiers.storage import TieredStorage

# How many rows are ranked, or removed, while the lock is held.
BATCH_ROWS = 1024
# Pairs of the spool that are read, and sorted, at a time: a few milliseconds, in which no other Python code runs.
_SPOOL_PAIRS, _SORTED_PAIRS = 1 << 16, 1 << 12

# Called between batches with the seconds that the last one took. It may raise, which ends the work.
Pause = Callable[[float], None]


class Bounding:
    """Restricts one variable. scratch: a folder for a temporary file of 16 bytes a row.

    alone: whether rows may be removed now; asked with the lock held.
    """

    def __init__(
        self, storage: TieredStorage, scoring: Scorer, scratch: Path | None, pause: Pause, alone: Callable[[], bool]
    ) -> None:
        self._storage, self._scoring, self._scratch = storage, scoring, scratch
        self._pause, self._alone, self._schema = pause, alone, storage.schema
        self._batch_rows = min(BATCH_ROWS, storage.limits.call_rows)

    def restrict(self, max_rows: int | None, expired: int) -> int:
        """Remove the rows that expired, then those that rank lowest, down to max_rows (None: no more).

        expired: rows whose last change was in an earlier step are removed, and so are those that the policy says have
        expired. Returns how many rows were removed. Raises what the pause raises; Closed, Poisoned, ColdStoreError,
        Corruption, MemoryError; what the policy raises. After an error the rows removed before it stay removed.
        """
        removed = 0
        with closing(ScoreSpool(self._scratch, block_pairs=_SPOOL_PAIRS, between=lambda: self._pause(0.0))) as spool:
            began = time.perf_counter()
            for rows in self._all_rows():
                ranks = self._scoring.ranking(rows)
                old, ordered = self._has_expired(rows, ranks, expired), order_keys(rows.keys, self._schema)
                if old.any():
                    removed += self._remove(ordered[old], lambda rows, ranks: self._has_expired(rows, ranks, expired))
                if max_rows is not None:
                    spool.append(ranks[~old], ordered[~old])
                began = self._rest(began)
            if max_rows is not None and (excess := min(self._storage.size - max_rows, len(spool))) > 0:
                limit = None
                if excess < len(spool):
                    limit = lowest_kept(spool.counts, spool.matching, len(spool) - excess, max_pairs=_SORTED_PAIRS)
                removed += self._remove_below(spool, limit, max_rows)
        return removed

    def _remove_below(self, spool: ScoreSpool, limit: ScoreLimit | None, max_rows: int) -> int:
        """Remove the rows below a limit, unless they rank higher by now, until max_rows are left; return how many."""

        def is_below(rows: RowBlock, ranks: npt.NDArray[np.float64]) -> Mask:
            if limit is None:
                return np.ones(len(rows), np.bool_)
            return limit.exceeds(order_scores(ranks), order_keys(rows.keys, self._schema))

        removed = 0
        for ordered in spool.below(limit):
            for at in range(0, len(ordered), self._batch_rows):
                removed += self._remove(ordered[at : at + self._batch_rows], is_below, max_rows)
        return removed

    def _has_expired(self, rows: RowBlock, ranks: npt.NDArray[np.float64], expired: int) -> Mask:
        found: Mask = (rows.steps < expired) | (ranks < self._scoring.min_score(self._storage.step))
        return found

    # Batches. Each holds the lock for a millisecond or a few.

    def _all_rows(self) -> Iterator[RowBlock]:
        """Yield all rows, each as it is now: those of the cold store in its order, and between them those of memory."""
        storage = self._storage
        with storage.access.held(land=False):
            storage.state.check_writable()
            storage.flush_memtables()
            keys, scan = storage.hot_tables.keys(), storage.cold.scan(self._batch_rows)
        in_memory = np.sort(order_keys(keys, self._schema))  # without the lock, as there may be millions of keys
        at = 0
        for stored in scan:
            ordered = order_keys(stored.keys, self._schema)
            stop = int(np.searchsorted(in_memory, ordered[-1], "right"))
            yield self._as_now(stored)
            yield from self._of_memory(np.setdiff1d(in_memory[at:stop], ordered))
            at = stop
        yield from self._of_memory(in_memory[at:])

    def _of_memory(self, ordered: Ordered) -> Iterator[RowBlock]:
        """Yield those of these rows that are in memory, or were left out of the scan because they were there."""
        for at in range(0, len(ordered), self._batch_rows):
            distinct = np.unique(ordered[at : at + self._batch_rows])
            wanted = RowBlock(self._schema, len(distinct))
            wanted.keys[:] = unordered_keys(distinct, self._schema)
            yield self._as_now(wanted, stored=False)

    def _as_now(self, rows: RowBlock, *, stored: bool = True) -> RowBlock:
        """Return rows as they are now, without those that are gone. stored: whether they are rows of the cold store."""
        storage = self._storage
        with storage.access.held(land=False):
            storage.state.check_writable()
            found = storage.in_memory(rows.keys)
            parts = list(storage.hot_tables.read(found.cells, found.owners))
        parts.append(found.rows.select(found.known & found.exists))
        if stored:
            parts.append(rows.select(found.cold[~found.known]))
        return RowBlock.joined(parts, self._schema)

    def _remove(
        self, ordered: Ordered, leaves: Callable[[RowBlock, npt.NDArray[np.float64]], Mask], max_rows: int = 0
    ) -> int:
        """Remove those of these rows of which `leaves` says so now, until max_rows are left; return how many."""
        storage, began = self._storage, time.perf_counter()
        with storage.removing():
            found = storage.locate(unordered_keys(ordered, self._schema))
            if not self._alone():  # asked last, as the lock is free during cold reads
                return 0
            parts = [*storage.hot_tables.read(found.cells, found.owners), found.rows.select(found.exists)]
            rows = RowBlock.joined(parts, self._schema)
            chosen = np.flatnonzero(leaves(rows, self._scoring.ranking(rows)))[: max(0, storage.size - max_rows)]
            storage.remove(rows.keys[chosen])
        storage.log.commit()
        self._rest(began)
        return len(chosen)

    def _rest(self, began: float) -> float:
        """Pause for the time since `began`; return the time after it."""
        self._pause(time.perf_counter() - began)
        return time.perf_counter()
