"""What each call does to the rows of one variable, wherever they are: looked up, changed, trained, scored, bounded.

Every method finds its rows through kvemb.tiers.storage, works on hot ones in their cells and on the others in a block,
and offers that block to the hot tier. A call is taken in chunks of limits.call_rows distinct keys, each atomic; one
that raises leaves the chunks before it as they are. Safe from several threads. Arguments are checked (kvemb.variable):
keys int64 (n,), values contiguous (n, dim).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask, RowKernels, Values
from kvemb.errors import Poisoned
from kvemb.meter import Progress
from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums, Unique
from kvemb.tiers.locate import Located
from kvemb.tiers.one_point import of_one_point
from kvemb.tiers.restricting import keep_highest
from kvemb.tiers.row_factory import RowFactory
from kvemb.tiers.scoring import Scoring
from kvemb.tiers.storage import TieredStorage


class TableOperations:
    """The calls on one variable's rows. kernels: for rows that are not hot. scratch: a folder for temporary files."""

    def __init__(
        self,
        storage: TieredStorage,
        factory: RowFactory,
        scoring: Scoring,
        kernels: RowKernels,
        optimizer: Optimizer | None,
        scratch: Path | None,
    ) -> None:
        self._storage, self._factory, self._scoring, self._kernels = storage, factory, scoring, kernels
        self._schema, self._hot_tables, self._scratch = storage.schema, storage.hot_tables, scratch
        self.optimizer = optimizer

    def _chunks(self, count: int) -> Iterator[slice]:
        """The parts of `count` keys that are worked on one after the other."""
        size = self._storage.limits.call_rows  # so that memory is bounded
        return (slice(start, start + size) for start in range(0, count, size))

    # Reading.

    @of_one_point
    def lookup(self, keys: Keys, out: Values, exists: Mask | None, *, touch: bool) -> None:
        """Fill out (n, dim) with the rows of keys, the initializer's for missing ones, and exists (n,) if given."""
        storage, scoring = self._storage, self._scoring
        with storage.reading():
            touch = touch and storage.state.keeps_uses and scoring.records_uses
            owners = self._hot_tables.owners(keys)
            if touch:
                storage.step += 1
                storage.copy_before_change(keys, owners)
            now = scoring.now(storage.step)
            missing = self._hot_tables.lookup(keys, owners, out, scoring.rule if touch else None, now)
            if touch and scoring.rule is ScoreRule.CUSTOM:
                scoring.use_hot(np.delete(keys, missing), now)
            storage.counts.hits += len(keys) - len(missing)
            storage.counts.misses += len(missing)
        if exists is not None:
            exists[:] = True
        if len(missing):
            self._lookup_cold(keys, missing, out, exists, now if touch else None)

    def _lookup_cold(self, keys: Keys, missing: Positions, out: Values, exists: Mask | None, now: float | None) -> None:
        """Fill in what lookup did not find hot. now None: uses are not recorded."""
        distinct = Unique(keys[missing])
        for chunk in self._chunks(len(distinct.keys)):
            values, there = self._look_up_chunk(distinct.keys[chunk], distinct.counts[chunk], now)
            positions, source = missing, distinct.inverse
            if len(values) < len(distinct.keys):
                chosen = np.flatnonzero((source >= chunk.start) & (source < chunk.stop))
                positions, source = missing[chosen], source[chosen] - chunk.start
            out[positions] = values[source]
            if exists is not None:
                exists[positions] = there[source]

    def _look_up_chunk(self, keys: Keys, counts: Positions, now: float | None) -> tuple[Values, Mask]:
        """Return the rows of distinct keys, used so often each, and which of them exist."""
        storage, values = self._storage, np.empty((len(keys), self._schema.dim), self._schema.value_dtype)
        with storage.reading():
            at = storage.locate(keys)
            if now is not None and storage.state.keeps_uses:  # it may have been poisoned since
                self._scoring.use(at, counts, now)
            else:
                now = None
            if len(at.cold) < len(keys):
                self._hot_tables.gather(at.cells, at.owners, values)
            absent = at.cold[~at.exists]
            if len(absent):
                values[absent] = self._factory.embeddings(keys[absent])
                storage.counts.absent += int(counts[absent].sum())
            there = at.present
            if len(absent) < len(at.cold):
                cold = at.only(at.exists)
                values[cold.cold] = cold.rows.embeddings()
                if storage.state.cause is None:
                    # A spill that fails here poisons the store; its rows stay in memory, and reading goes on.
                    with suppress(Poisoned):
                        storage.admit(cold, by_score=now is None)
        return values, there

    @of_one_point
    def scores(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return each key's score, NaN where it is absent. Does not count as a use; promotes nothing."""
        distinct = Unique(keys)
        scores = np.empty(len(distinct.keys))
        for chunk in self._chunks(len(distinct.keys)):
            with self._storage.reading():
                at = self._storage.locate(distinct.keys[chunk])
                part = self._hot_tables.scores(at.cells, at.owners)
                part[at.cold[at.exists]] = at.rows.scores[at.exists]
                scores[chunk] = part
        return scores[distinct.inverse]

    def prefetch(self, keys: Keys) -> None:
        """Start reading the cold rows of keys, on another thread, for the call that follows. Changes no result."""
        self._storage.read_ahead(Unique(keys).keys)

    def warm(self, keys: Keys) -> None:
        """Make rows hot, as far as they outscore what is. Keys are distinct; those that do not exist are ignored."""
        for chunk in self._chunks(len(keys)):
            with self._storage.reading():
                at = self._storage.locate(keys[chunk])
                self._storage.admit(at.only(at.exists), by_score=True)

    # Writing.

    def upsert(self, keys: Keys, values: Values) -> None:
        """Insert rows or replace their embeddings; of duplicate keys the last wins."""
        for chunk in self._chunks(len(keys)):
            self._upsert(keys[chunk], values[chunk])
        self._storage.acknowledge()

    def _upsert(self, keys: Keys, values: Values) -> None:
        storage = self._storage
        with storage.writing():
            score, owners = self._scoring.first(storage.step), self._hot_tables.owners(keys)
            storage.copy_before_change(keys, owners)
            with storage.changing():
                missing = self._hot_tables.upsert(keys, owners, values, storage.step)
                storage.log.hot(keys, owners, missing, storage.step)
        if len(missing):
            self._upsert_missing(keys[missing], values[missing], score)

    def _upsert_missing(self, keys: Keys, values: Values, score: float) -> None:
        """Upsert keys that were not hot; by now some may be."""
        storage, distinct = self._storage, Unique(keys)
        values = values[distinct.last]
        with storage.writing():
            at = storage.locate(distinct.keys)
            self._create(at, score)
            with storage.changing():
                self._hot_tables.assign(at.cells, at.owners, values, storage.step)
                self._kernels.assign(at.rows, np.arange(len(at.rows)), values[at.cold], storage.step)
                storage.log.located(at, storage.step)
                storage.admit(at)

    def accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        """Add new - old to keys that exist as the caller believes; insert new where both say absent; else ignore."""
        for chunk in self._chunks(len(keys)):
            self._accum(keys[chunk], old[chunk], new[chunk], exists[chunk])
        self._storage.acknowledge()

    def _accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        storage, distinct, n = self._storage, Unique(keys), len(keys)
        inverse = distinct.inverse
        with storage.writing():
            at = storage.locate(distinct.keys)
            score = self._scoring.first(storage.step)
            present = at.present
            # An absent key is inserted by its first occurrence with exists False; later ones add to it.
            inserting = np.flatnonzero(~exists & ~present[inverse])
            inserted_at = np.full(len(distinct.keys), n)
            inserted_at[inverse[inserting][::-1]] = inserting[::-1]
            inserted_at[present] = -1
            adding = np.flatnonzero(exists & (np.arange(n) > inserted_at[inverse]))
            at, added = at.only(at.exists | (inserted_at[at.cold] < n)), inverse[adding]
            made = np.flatnonzero(~at.exists)
            self._create(at, score)
            row_of = np.full(len(at.keys), -1, np.int64)
            row_of[at.cold] = np.arange(len(at.cold))
            with storage.changing():
                self._hot_tables.add(at.cells[added], at.owners_of(added), old[adding], new[adding], storage.step)
                self._kernels.assign(at.rows, made, new[inserted_at[at.cold[made]]], storage.step)
                self._kernels.add(at.rows, row_of[added], old[adding], new[adding], storage.step)
                storage.log.located(at, storage.step)
                storage.admit(at)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take one optimizer step on each distinct key; gradients of duplicates are summed in order first."""
        optimizer = self.optimizer  # one for all chunks, whatever another thread sets meanwhile
        assert optimizer is not None
        distinct = Unique(keys)
        for chunk in self._chunks(len(distinct.keys)):
            self._apply(distinct.keys[chunk], optimizer, grads, distinct.sums.of(chunk))
        self._storage.acknowledge()

    def _apply(self, keys: Keys, optimizer: Optimizer, grads: Values, sums: Sums) -> None:
        storage = self._storage
        with storage.writing():
            at = storage.locate(keys)
            self._create(at, self._scoring.first(storage.step))
            with storage.changing():
                self._hot_tables.apply(at.cells, at.owners, optimizer, grads, storage.step, sums)
                if len(at.rows):
                    cold = np.arange(len(at.rows))
                    self._kernels.apply(at.rows, cold, optimizer, grads, storage.step, sums.of(at.cold))
                storage.log.located(at, storage.step)
                storage.admit(at)

    def set_optimizer(self, optimizer: Optimizer, *, writable: bool = True) -> None:
        """Go on with an optimizer of the same slots. writable: raises where rows may not change."""
        with self._storage.held():
            if writable:
                self._storage.state.check_writable()
            self.optimizer = optimizer
            self._factory.set_optimizer(optimizer)

    def _create(self, at: Located, score: float) -> None:
        """Make the absent rows of `at` new ones: initial embedding and slots, and this score."""
        absent = (~at.exists).nonzero()[0]
        if len(absent):
            keys = at.rows.keys[absent]
            at.rows.put(absent, self._factory.rows(keys, self._factory.embeddings(keys), score, self._storage.step))

    def put(self, rows: RowBlock, step: int) -> None:
        """Replace whole rows, of distinct keys: embedding, slots, score, step of last change. step: of the table.

        Rows that are not hot go to the spill buffer and stay cold. The caller's block is marked dirty.
        """
        for chunk in self._chunks(len(rows)):
            part = rows.part(chunk.start, min(chunk.stop, len(rows)))
            part.flags[:] = DIRTY
            with self._storage.writing():
                self._storage.replace(self._storage.locate(part.keys), part, step)
        self._storage.acknowledge()

    def remove(self, keys: Keys) -> None:
        """Drop rows with their slots and scores; missing keys are ignored."""
        distinct = Unique(keys).keys
        for chunk in self._chunks(len(distinct)):
            with self._storage.writing():
                at = self._storage.locate(distinct[chunk])
                self._storage.remove(at.keys[at.present])
        self._storage.acknowledge()

    def clear(self) -> None:
        """Drop every row."""
        with self._storage.writing(without_snapshot=True):
            self._storage.clear()
        self._storage.acknowledge()

    def use(self, keys: Keys) -> None:
        """Record one use of each occurrence of keys that exist."""
        storage, distinct = self._storage, Unique(keys)
        storage.state.check_writable()
        with storage.held():
            storage.step += 1
        for chunk in self._chunks(len(distinct.keys)):
            with storage.writing():
                at = storage.locate(distinct.keys[chunk])
                self._scoring.use(at, distinct.counts[chunk], self._scoring.now(storage.step))
                with storage.changing():
                    there = at.only(at.exists)
                    storage.log.located(there, storage.step)
                    storage.admit(there)
        storage.acknowledge()

    def restrict(self, keep_rows: int, trigger_rows: int | None, progress: Progress | None = None) -> int:
        """Keep the `keep_rows` highest scores over both tiers, ties to the larger key; returns how many rows left.

        Does nothing unless there are more than trigger_rows.
        """
        storage = self._storage
        with storage.writing(without_snapshot=True):
            before = storage.size
            if keep_rows < before and (trigger_rows is None or before > trigger_rows):
                keep_highest(storage, keep_rows, self._scratch, progress)
            removed = before - storage.size
        storage.acknowledge()
        return removed

    def new_rows(self, keys: Keys, values: Values) -> RowBlock:
        """Return rows as they would be made now, clean and in no tier."""
        rows = self._factory.rows(keys, values, self._scoring.first(self._storage.step), self._storage.step)
        rows.flags[:] = 0
        return rows
