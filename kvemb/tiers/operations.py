"""What each call does to the rows of one variable, wherever they are: looked up, changed, trained, scored, bounded.

Every method finds its rows through kvemb.tiers.storage, works on hot ones in their cells and on the others in a block,
and offers that block to the hot tier. Batches are taken in chunks, so that memory for one call is bounded beside the
caller's own arrays. Safe from several threads; each call is atomic per key.

Every method takes checked arguments (kvemb.variable): keys int64 (n,), values contiguous (n, dim).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask, RowKernels, Values
from kvemb.errors import Poisoned
from kvemb.meter import Meter, Progress
from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.rows.hashing import Keys, Positions, Unique, kernel
from kvemb.tiers.locate import Located
from kvemb.tiers.row_factory import RowFactory
from kvemb.tiers.scoring import Scoring
from kvemb.tiers.selection import Spool
from kvemb.tiers.storage import TieredStorage

CHUNK_ROWS = 65_536


@kernel
def _sum_rows(inverse: Any, grads: Any, out: Any) -> None:
    for i in range(len(inverse)):
        for j in range(grads.shape[1]):
            out[inverse[i], j] += grads[i, j]


class TableOperations:
    """The calls on one variable's rows. scratch: a folder for temporary files."""

    def __init__(
        self,
        storage: TieredStorage,
        factory: RowFactory,
        scoring: Scoring,
        optimizer: Optimizer | None,
        scratch: Path | None,
    ) -> None:
        self._storage, self._factory, self._scoring, self.optimizer = storage, factory, scoring, optimizer
        self._schema, self._hot_tables, self._scratch = storage.schema, storage.hot_tables, scratch

    @property
    def _kernels(self) -> RowKernels:
        return self._hot_tables.tables[0]

    # Reading.

    def lookup(self, keys: Keys, out: Values, exists: Mask | None, *, touch: bool) -> None:
        """Fill out (n, dim) with the rows of keys, the initializer's for missing ones, and exists (n,) if given."""
        storage, rule = self._storage, self._scoring.rule
        with storage.reading() as uses_kept:
            touch = touch and uses_kept
            if touch:
                storage.step += 1
                storage.keep(keys)
            now = self._scoring.now(storage.step)
            cells = np.empty(len(keys), np.int64)
            for table, places in self._hot_tables.split(keys):
                whole = isinstance(places, slice)
                part = out if whole else np.empty((len(places), self._schema.dim), out.dtype)
                cells[places] = table.lookup(keys[places], part, rule if touch else None, now)
                if not whole:
                    hot = cells[places] >= 0
                    out[places[hot]] = part[hot]
            if touch and rule is ScoreRule.CUSTOM:
                self._scoring.use_hot(keys[cells >= 0], None, now)
            missing = np.flatnonzero(cells < 0)
            storage.counts.hits += len(keys) - len(missing)
            storage.counts.misses += len(missing)
        if exists is not None:
            exists[:] = cells >= 0
        if len(missing):
            self._lookup_cold(keys, missing, out, exists, now if touch else None)

    def _lookup_cold(self, keys: Keys, missing: Positions, out: Values, exists: Mask | None, now: float | None) -> None:
        """Fill in what lookup did not find hot. now None: uses are not recorded."""
        storage, distinct = self._storage, Unique(keys[missing])
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, len(distinct.keys))
            counts = distinct.counts[start:stop]
            values = np.empty((stop - start, self._schema.dim), out.dtype)
            with storage.reading(), storage.located(distinct.keys[start:stop]) as at:
                hot = np.flatnonzero(at.cells >= 0)
                absent = at.cold[~at.exists]
                there = at.only(at.exists)
                if not storage.state.keeps_uses:
                    now = None  # a write has failed since
                if now is not None:
                    self._scoring.use_rows(there.rows, counts[there.cold], now)
                    self._scoring.use_hot(at.keys[hot], counts[hot], now)
                self._gather_hot(at, hot, values)
                found = np.empty((len(there.rows), self._schema.dim), out.dtype)
                self._kernels.gather(there.rows, np.arange(len(there.rows)), found)
                values[there.cold] = found
                values[absent] = self._factory.embeddings(at.keys[absent])
                storage.counts.absent += int(counts[absent].sum())
                if storage.state.cause is None:
                    # A spill that fails here poisons the store; its rows stay in memory, and reading goes on.
                    with suppress(Poisoned):
                        storage.admit(there, by_score=now is None)
                here = at.present
            chosen = np.flatnonzero((distinct.inverse >= start) & (distinct.inverse < stop))
            places, source = missing[chosen], distinct.inverse[chosen] - start
            out[places] = values[source]
            if exists is not None:
                exists[places] = here[source]

    def _gather_hot(self, at: Located, hot: Positions, values: Values) -> None:
        for table, places in self._hot_tables.split(at.keys[hot]):
            mine = hot[places]
            found = np.empty((len(mine), self._schema.dim), values.dtype)
            table.gather(table.block, at.cells[mine], found)
            values[mine] = found

    def scores(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return each key's score, NaN where it is absent. Does not count as a use; promotes nothing."""
        distinct = Unique(keys)
        scores = np.full(len(distinct.keys), np.nan)
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            stop = start + CHUNK_ROWS
            with self._storage.reading(), self._storage.located(distinct.keys[start:stop]) as at:
                part = scores[start:stop]
                for table, places in self._hot_tables.parts(at.owners):
                    cells = at.cells[places]
                    part[places] = np.where(cells >= 0, table.block.scores[cells], part[places])
                part[at.cold[at.exists]] = at.rows.scores[at.exists]
        return scores[distinct.inverse]

    def prefetch(self, keys: Keys) -> None:
        """Start reading the cold rows of keys, on another thread, for the call that follows. Changes no result."""
        self._storage.read_ahead(Unique(keys).keys)

    def warm(self, keys: Keys) -> None:
        """Make rows hot, as far as they outscore what is. Keys are distinct; those that do not exist are ignored."""
        for start in range(0, len(keys), CHUNK_ROWS):
            with self._storage.reading(), self._storage.located(keys[start : start + CHUNK_ROWS]) as at:
                self._storage.admit(at.only(at.exists), by_score=True)

    # Writing.

    def upsert(self, keys: Keys, values: Values) -> None:
        """Insert rows or replace their embeddings; of duplicate keys the last wins."""
        for start in range(0, len(keys), CHUNK_ROWS):
            self._upsert(keys[start : start + CHUNK_ROWS], values[start : start + CHUNK_ROWS])

    def _upsert(self, keys: Keys, values: Values) -> None:
        storage = self._storage
        with storage.writing():
            score = self._scoring.first(storage.step)
            storage.keep(keys)
            cells = np.empty(len(keys), np.int64)
            for table, places in self._hot_tables.split(keys):
                cells[places] = table.upsert(keys[places], values[places], storage.step)
                if storage.logging:
                    changed = np.unique(cells[places])
                    storage.log_rows(table.block.select(changed[changed >= 0]))
            missing = np.flatnonzero(cells < 0)
            if len(missing):
                self._upsert_missing(keys[missing], values[missing], score)

    def _upsert_missing(self, keys: Keys, values: Values, score: float) -> None:
        storage, distinct = self._storage, Unique(keys)
        values = values[distinct.last]
        with storage.located(distinct.keys) as at:
            for table, places in self._hot_tables.parts(at.owners):
                table.assign(table.block, at.cells[places], values[places], storage.step)
            self._create(at, score)
            self._kernels.assign(at.rows, np.arange(len(at.rows)), values[at.cold], storage.step)
            storage.log_located(at)
            storage.admit(at)

    def accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        """Add new - old to keys that exist as the caller believes; insert new where both say absent; else ignore."""
        for start in range(0, len(keys), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            self._accum(keys[part], old[part], new[part], exists[part])

    def _accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        storage, distinct = self._storage, Unique(keys)
        inverse, n = distinct.inverse, len(keys)
        with storage.writing(), storage.located(distinct.keys) as at:
            score = self._scoring.first(storage.step)
            present = at.present
            # An absent key is inserted by its first occurrence that says absent; later ones add to it.
            inserting = np.flatnonzero(~exists & ~present[inverse])
            inserted_at = np.full(len(distinct.keys), n)
            inserted_at[inverse[inserting][::-1]] = inserting[::-1]
            inserted_at[present] = -1
            adding = np.flatnonzero(exists & (np.arange(n) > inserted_at[inverse]))
            for table, places in self._hot_tables.parts(at.owners):
                cells = np.full(len(at.keys), -1, np.int64)
                cells[places] = at.cells[places]
                table.add(table.block, cells[inverse[adding]], old[adding], new[adding], storage.step)
            at = at.only(at.exists | (inserted_at[at.cold] < n))
            made = np.flatnonzero(~at.exists)
            self._create(at, score)
            self._kernels.assign(at.rows, made, new[inserted_at[at.cold[made]]], storage.step)
            row_of = np.full(len(at.keys), -1, np.int64)
            row_of[at.cold] = np.arange(len(at.cold))
            self._kernels.add(at.rows, row_of[inverse[adding]], old[adding], new[adding], storage.step)
            storage.log_located(at)
            storage.admit(at)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take one optimizer step on each distinct key; gradients of duplicates are summed in order first."""
        optimizer = self.optimizer  # one for all chunks, whatever another thread sets meanwhile
        assert optimizer is not None
        storage, distinct = self._storage, Unique(keys)
        if distinct.repeated:
            # From -0.0, which added to any number gives that number: what a key gets does not hang on its batch.
            summed = np.full((len(distinct.keys), self._schema.dim), -0.0, grads.dtype)
            _sum_rows(distinct.inverse, grads, summed)
            grads = summed
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            part = grads[start : start + CHUNK_ROWS]
            with storage.writing(), storage.located(distinct.keys[start : start + CHUNK_ROWS]) as at:
                score = self._scoring.first(storage.step)
                for table, places in self._hot_tables.parts(at.owners):
                    table.apply(table.block, at.cells[places], optimizer, part[places], storage.step)
                self._create(at, score)
                rows = np.arange(len(at.rows))
                self._kernels.apply(at.rows, rows, optimizer, part[at.cold], storage.step)
                storage.log_located(at)
                storage.admit(at)

    def train_with(self, optimizer: Optimizer, *, writable: bool = True) -> None:
        """Go on with an optimizer of the same slots. writable: raises where rows may not change."""
        with self._storage.held():
            if writable:
                self._storage.state.check_writable()
            self.optimizer = optimizer
            self._factory.train_with(optimizer)

    def _create(self, at: Located, score: float) -> None:
        """Make the absent rows of `at` new ones: initial embedding and slots, and this score."""
        absent = np.flatnonzero(~at.exists)
        if len(absent):
            keys = at.rows.keys[absent]
            at.rows.put(absent, self._factory.rows(keys, self._factory.embeddings(keys), score, self._storage.step))

    def put(self, rows: RowBlock, step: int) -> None:
        """Replace whole rows, of distinct keys: embedding, slots, score, step of last change. step: of the tier.

        Rows that are not hot go to the spill buffer and stay cold. The caller's block is marked dirty.
        """
        storage = self._storage
        for start in range(0, len(rows), CHUNK_ROWS):
            part = rows.part(start, min(start + CHUNK_ROWS, len(rows)))
            part.flags[:] = DIRTY
            with storage.writing(), storage.located(part.keys) as at:
                cold = part.select(at.cold)
                for table, places in self._hot_tables.parts(at.owners):
                    cells = at.cells[places]
                    hot = np.arange(len(part))[places][cells >= 0]
                    table.block.put(cells[cells >= 0], part.select(hot))
                storage.size += int(np.sum(~at.exists))
                storage.step = max(storage.step, step)
                storage.to_spill(cold)
                storage.log_rows(part)

    def remove(self, keys: Keys) -> None:
        """Drop rows with their slots and scores; missing keys are ignored."""
        distinct = Unique(keys).keys
        for start in range(0, len(distinct), CHUNK_ROWS):
            with self._storage.writing(), self._storage.located(distinct[start : start + CHUNK_ROWS]) as at:
                self._storage.remove(at.keys[at.present])

    def clear(self) -> None:
        """Drop every row."""
        with self._storage.writing(uncut=True):
            self._storage.clear()

    def use(self, keys: Keys) -> None:
        """Record one use of each occurrence of keys that exist."""
        storage, distinct = self._storage, Unique(keys)
        storage.state.check_writable()
        with storage.held():
            storage.step += 1
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            counts = distinct.counts[start : start + CHUNK_ROWS]
            with storage.writing(), storage.located(distinct.keys[start : start + CHUNK_ROWS]) as at:
                now = self._scoring.now(storage.step)
                hot = np.flatnonzero(at.cells >= 0)
                there = at.only(at.exists)
                self._scoring.use_rows(there.rows, counts[there.cold], now)
                self._scoring.use_hot(at.keys[hot], counts[hot], now)
                storage.log_located(there)
                storage.admit(there)

    def restrict(self, keep_rows: int, trigger_rows: int | None, progress: Progress | None = None) -> int:
        """Keep the `keep_rows` highest scores over both tiers, ties to the larger key; returns how many rows left.

        Does nothing unless there are more than trigger_rows.

        Dirty rows are written first, so that one scan of the cold store sees every score. The scan spools 16 bytes a
        row to a temporary file, from which the limit is found; memory does not depend on the number of rows.
        """
        storage = self._storage
        with storage.writing(uncut=True):
            before = storage.size
            if keep_rows >= before or (trigger_rows is not None and before <= trigger_rows):
                return 0
            storage.write_dirty()
            with Spool(self._scratch) as spool:
                meter = Meter(2 * before - keep_rows, progress)
                for rows in storage.cold.scan(CHUNK_ROWS):
                    spool.append(rows.scores, order_keys(rows.keys, self._schema))
                    meter(len(rows))
                for ordered in spool.below_limit(keep_rows):
                    storage.remove(unordered_keys(ordered, self._schema))
                    meter(len(ordered))
            storage.write_dirty()
            return before - storage.size

    def new_rows(self, keys: Keys, values: Values) -> RowBlock:
        """Return rows as they would be made now, clean and in no tier."""
        rows = self._factory.rows(keys, values, self._scoring.first(self._storage.step), self._storage.step)
        rows.flags[:] = 0
        return rows
