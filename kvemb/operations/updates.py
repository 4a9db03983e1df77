"""The calls that change rows of one variable, hot or cold: updates, optimizer steps, removals, restriction.

A call takes at most limits.call_rows distinct keys at a time. It locates their rows through kvemb.tiers.storage,
changes hot rows in their cells and the others in a block, and promotes that block. It is atomic for each key: others
see a row as before the call or as after it. If it raises, earlier chunks of keys have been changed. Thread-safe.
Arguments have been checked by kvemb.variable: keys are int64 (n,), values contiguous (n, dim).
"""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import numpy as np

from kvemb.contracts import Mask, PlannedChange, Values
from kvemb.operations.admission_counters import AdmissionCounters
from kvemb.operations.bounding import Bounding, Pause
from kvemb.operations.constraining import Constraint, ConstraintProjector
from kvemb.operations.reads import TableReads
from kvemb.operations.restricting import Restriction
from kvemb.operations.row_factory import RowFactory
from kvemb.operations.scoring import Scorer
from kvemb.operations.selection import ScoreLimit
from kvemb.optimizers import Optimizer
from kvemb.progress import Meter, Progress
from kvemb.restrict import RestrictPolicy
from kvemb.restrict.bounds import Bounds
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums, Unique
from kvemb.rows.names import Names, check_names, names_behind, with_names
from kvemb.threads.interrupts import uninterrupted
from kvemb.tiers.hot_tables import ALL
from kvemb.tiers.located import Located
from kvemb.tiers.storage import TieredStorage


class TableUpdates(TableReads):
    """The calls that change one variable's rows. scratch: a folder for temporary files.

    Signal handlers wait until a call has changed all of its rows, because one that saves would save half of it.
    admission_counters: decide which missing keys training gives a row; None: all.
    bounds: what kvemb.engine.keeping_bounds restricts the table to.
    """

    def __init__(
        self,
        storage: TieredStorage,
        factory: RowFactory,
        scoring: Scorer,
        scratch: Path | None,
        constraint: Constraint | None = None,
        admission_counters: AdmissionCounters | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008 -- a frozen value
    ) -> None:
        super().__init__(storage, factory, scoring)
        self._scratch, self.admission_counters, self.bounds = scratch, admission_counters, bounds
        self._kernels = factory.kernels  # for rows that are not hot
        self._rankings = 0  # of ranked(), whose rows must not change
        storage.counts.bytes_sightings = 0 if admission_counters is None else admission_counters.nbytes
        self._constraining = (
            None if constraint is None else ConstraintProjector(constraint, self._hot_tables, self._kernels)
        )

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer; None: there is none. Set it with the variable's lock."""
        return self._factory.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer | None) -> None:
        self._factory.set_optimizer(optimizer)

    # Of string keys, the rows' names (kvemb.rows.names) stand behind values and gradients. Equal keys have equal names.

    def upsert(self, keys: Keys, values: Values) -> None:
        """Insert rows or replace their embeddings; for duplicate keys the last value wins."""
        with uninterrupted():
            for chunk in self._chunks(len(keys)):
                self._upsert(keys[chunk], values[chunk])
        self._storage.log.commit()

    def _upsert(self, keys: Keys, values: Values) -> None:
        storage = self._storage
        if self._schema.name_bytes:  # names are compared before a row changes
            self._upsert_located(keys, values)
            return
        with storage.updating():
            score, owners = self._scoring.first(storage.step), self._hot_tables.owners(keys)
            storage.snapshot.copy_before_change(keys, None, owners)
            self._hot_tables.prepare(owners, len(keys), PlannedChange(embeddings=1, matching=self._factory.matching))
            with storage.access.poisoning():
                missing = self._hot_tables.upsert(keys, owners, values, storage.step)
                if self._factory.matching is not None:
                    cells = self._hot_tables.find(keys, owners)
                    self._hot_tables.match(cells, owners, self._factory.matching, storage.step)
                storage.log.hot(keys, owners, missing, storage.step)
        if len(missing):
            self._upsert_located(keys[missing], values[missing], score)

    def _upsert_located(self, keys: Keys, values: Values, score: float | None = None) -> None:
        """Upsert keys, hot or not. score: of new rows; None: that of a row created now."""
        storage, distinct = self._storage, Unique(keys)
        values = values[distinct.last]
        with storage.updating():
            found = storage.locate(distinct.keys)
            self._check_names(found, values)
            self._create(found, self._scoring.first(storage.step) if score is None else score)
            change = PlannedChange(embeddings=1, matching=self._factory.matching)
            self._hot_tables.prepare(found.owners, len(found.keys), change)
            with storage.access.poisoning():
                self._hot_tables.assign(found.cells, found.owners, values, storage.step)
                self._kernels.assign(found.rows, np.arange(len(found.rows)), values[found.cold], storage.step)
                self._match(found, np.arange(len(found.keys)))
                storage.log.located(found, storage.step)
                storage.promote(found)

    def accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        """Add new - old if the key exists and `exists` is True; insert new if neither; ignore the other keys."""
        with uninterrupted():
            for chunk in self._chunks(len(keys)):
                self._accum(keys[chunk], old[chunk], new[chunk], exists[chunk])
        self._storage.log.commit()

    def _accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        storage, distinct, n = self._storage, Unique(keys), len(keys)
        inverse = distinct.inverse
        with storage.updating():
            found = storage.locate(distinct.keys)
            self._check_names(found, new, distinct.sums.first)
            score = self._scoring.first(storage.step)
            present = found.present
            # An absent key is inserted by its first occurrence with exists False; later ones add to it.
            inserting = np.flatnonzero(~exists & ~present[inverse])
            inserted_at = np.full(len(distinct.keys), n)
            inserted_at[inverse[inserting][::-1]] = inserting[::-1]
            inserted_at[present] = -1
            adding = np.flatnonzero(exists & (np.arange(n) > inserted_at[inverse]))
            found, added = found.with_cold(found.exists | (inserted_at[found.cold] < n)), inverse[adding]
            made = np.flatnonzero(~found.exists)
            self._create(found, score)
            row_of = np.full(len(found.keys), -1, np.int64)
            row_of[found.cold] = np.arange(len(found.cold))
            self._hot_tables.prepare(found.owners_of(added), len(added), PlannedChange(embeddings=2))
            self._hot_tables.prepare(found.owners, len(found.keys), PlannedChange(matching=self._factory.matching))
            with storage.access.poisoning():
                self._hot_tables.add(found.cells[added], found.owners_of(added), old[adding], new[adding], storage.step)
                self._kernels.assign(found.rows, made, new[inserted_at[found.cold[made]]], storage.step)
                self._kernels.add(found.rows, row_of[added], old[adding], new[adding], storage.step)
                if self._factory.matching is not None:
                    self._match(found, np.union1d(added, found.cold[made]))
                storage.log.located(found, storage.step)
                storage.promote(found)

    def apply_gradients(self, keys: Keys, grads: Values, *, acknowledge: bool = True) -> None:
        """Take one optimizer step on each distinct key; gradients of duplicates are summed in order first.

        acknowledge=False: the caller calls storage.log.commit(), once for several variables.
        """
        optimizer = self._factory.optimizer  # the same for all chunks, even if another thread sets it meanwhile
        assert optimizer is not None
        distinct, count = self._storage.ahead.distinct(keys), 0
        with uninterrupted():
            for chunk in self._chunks(len(distinct.keys)):
                part = distinct.keys[chunk], distinct.counts[chunk]
                count = self._apply(*part, optimizer, grads, distinct.sums.of(chunk), count)
        if acknowledge:
            self._storage.log.commit()

    def _apply(
        self, keys: Keys, occurrences: Positions, optimizer: Optimizer, grads: Values, sums: Sums, count: int
    ) -> int:
        """Take the step on a chunk; return its number. count: that number; 0 for the first chunk, which counts it."""
        storage = self._storage
        with storage.updating():
            located = storage.locate(keys)
            names = self._check_names(located, grads, sums.first)
            found = self._admitted(located, occurrences)
            self._create(found, self._scoring.first(storage.step), names)
            before = None if self._constraining is None else self._constraining.copies(found)
            number = count or storage.next_optimizer_step()
            failure: Exception | None = None
            change = PlannedChange(optimizer=optimizer, grads=grads, sums=sums)
            self._hot_tables.prepare(found.owners, len(found.keys), change)
            if self._constraining is not None:
                projection = PlannedChange(rows=True, embeddings=1, matching=self._factory.matching)
                self._hot_tables.prepare(found.owners, len(found.keys), projection)
            with storage.access.poisoning():
                self._hot_tables.apply(found.cells, found.owners, optimizer, grads, storage.step, sums, number)
                if len(found.rows):
                    cold = np.arange(len(found.rows))
                    self._kernels.apply(found.rows, cold, optimizer, grads, storage.step, sums.of(found.cold), number)
                if self._constraining is not None and before is not None:
                    moved, failure = self._constraining.project(found, before, storage.step)
                    if failure is None:
                        self._match(found, moved)
                if failure is None:
                    if optimizer.counts_steps and count == 0:
                        storage.count_optimizer_step(number)
                    storage.log.located(found, storage.step)
                    storage.promote(found)
            if failure is not None:
                raise failure
        return number

    def _match(self, found: Located, changed: Positions) -> None:
        """Set those slots of the rows at positions `changed` of found.keys, whose embeddings were set."""
        if (optimizer := self._factory.matching) is not None:
            self._hot_tables.match(found.cells[changed], found.owners_of(changed), optimizer, self._storage.step)
            rows = np.flatnonzero(np.isin(found.cold, changed))
            self._kernels.match(found.rows, rows, optimizer, self._storage.step)

    def _admitted(self, found: Located, counts: Positions) -> Located:
        """Return `found` without missing keys that have too few sightings. counts (n,): new sightings of found.keys."""
        absent = found.cold[~found.exists]
        if self.admission_counters is None or len(absent) == 0:
            return found
        enough = self.admission_counters.count(found.keys[absent], counts[absent])
        self._storage.counts.refused += int(counts[absent[~enough]].sum())
        chosen = found.exists.copy()
        chosen[~found.exists] = enough
        return found.with_cold(chosen)

    def set_optimizer(self, optimizer: Optimizer, *, writable: bool = True) -> None:
        """Replace the optimizer by one with the same slots. writable: whether to raise if rows may not change."""
        with self._storage.access.held(land=False):
            if writable:
                self._storage.state.check_writable()
            self.optimizer = optimizer

    def set_policy(self, policy: RestrictPolicy | None) -> None:
        """Replace the policy by one of the same class."""
        self._scoring = Scorer(policy, self._hot_tables)

    def set_bounds(self, bounds: Bounds) -> None:
        """Replace the bounds."""
        with self._storage.access.held(land=False):
            self._storage.state.check_writable()
            self.bounds = bounds

    def _create(self, found: Located, score: float, names: Names | None = None) -> None:
        """Fill in the missing rows of `found` as new rows: initial embedding, initial slots, this score.

        names: of found.keys; None: the caller sets embedding and name.
        """
        absent = (~found.exists).nonzero()[0]
        if len(absent):
            keys = found.rows.keys[absent]
            values = self._factory.embeddings(keys)
            if names is not None:
                values = with_names(values[:, : self._schema.dim], names[found.cold[absent]])
            found.rows.put(absent, self._factory.rows(keys, values, score, self._storage.step))

    def _check_names(self, found: Located, wide: Values, at: Positions | slice = ALL) -> Names | None:
        """Return the names of found.keys, which are behind the rows of wide (·, dim) at these positions.

        None: keys are no strings. Raises HashCollision if a row has another name.
        """
        schema = self._schema
        if not schema.name_bytes:
            return None
        names = names_behind(wide[at], schema.dim)
        stored = np.zeros((len(names), schema.width), schema.value_dtype)
        self._hot_tables.gather(found.cells, found.owners, stored)
        stored[found.cold[found.exists]] = found.rows.named_embeddings()[found.exists]
        check_names(found.keys, names, names_behind(stored, schema.dim))
        return names

    def put(self, rows: RowBlock, step: int) -> None:
        """Insert or replace whole rows (embedding, slots, score, step) of distinct keys. step: the table's.

        Rows that are not hot go to a memtable and stay cold. The caller's block is marked dirty.
        """
        with uninterrupted():
            for chunk in self._chunks(len(rows)):
                part = rows.part(chunk.start, min(chunk.stop, len(rows)))
                part.flags[:] = DIRTY
                with self._storage.writing():
                    self._storage.replace(self._storage.locate(part.keys), part, step)
        self._storage.log.commit()

    def remove(self, keys: Keys) -> None:
        """Drop rows with their slots and scores. Sightings of the keys, with or without a row, are counted from 0."""
        distinct = Unique(keys).keys
        with uninterrupted():
            for chunk in self._chunks(len(distinct)):
                with self._storage.writing():
                    found = self._storage.locate(distinct[chunk])
                    self._storage.remove(found.keys[found.present])
                    if self.admission_counters is not None:
                        self.admission_counters.forget(distinct[chunk])
        self._storage.log.commit()

    def clear(self) -> None:
        """Drop every row, and set all counters to 0."""
        with self._storage.writing_without_snapshot():
            self._storage.clear()
            if self.admission_counters is not None:
                self.admission_counters.take(None)
        self._storage.log.commit()

    def use(self, keys: Keys) -> None:
        """Record one use of each occurrence of keys that exist."""
        storage, distinct = self._storage, Unique(keys)
        storage.state.check_writable()
        with uninterrupted():
            with storage.access.held():
                storage.count_use()
            for chunk in self._chunks(len(distinct.keys)):
                with storage.writing():
                    found = storage.locate(distinct.keys[chunk])
                    self._scoring.use(found, distinct.counts[chunk], self._scoring.now(storage.step))
                    with storage.access.poisoning():
                        there = found.with_cold(found.exists)
                        storage.log.located(there, storage.step)
                        storage.promote(there)
        storage.log.commit()

    def restrict(self, keep_rows: int, trigger_rows: int | None, progress: Progress | None = None) -> int:
        """Keep the keep_rows rows with the highest scores, of equal scores the larger keys; return the number removed.

        Rows that have expired are removed in addition. Does nothing unless there are more than trigger_rows rows.
        """
        storage = self._storage
        with storage.writing_without_snapshot():
            before = storage.size
            expire = self._scoring.min_score(storage.step) > -math.inf
            if (keep_rows < before or expire) and (trigger_rows is None or before > trigger_rows):
                with closing(Restriction(storage, self._scoring, self._scratch)) as restriction:
                    restriction.keep_highest(keep_rows, progress)
            removed = before - storage.size
        storage.log.commit()
        return removed

    def keep_bounds(self, max_rows: int | None, expired: int, pause: Pause, refreshes: int) -> int:
        """Restrict the table while others use it; return how many rows were removed. See Bounding.restrict.

        refreshes: the storage's when the bounds were read. It ends as soon as a rollback has made others of them.
        """

        def alone() -> bool:
            return self._rankings == 0 and self._storage.refreshes == refreshes

        bounding = Bounding(self._storage, self._scoring, self._scratch, pause, alone)
        return bounding.restrict(max_rows, expired)

    def count_removals(self, keep_rows: int, progress: Progress | None = None) -> int:
        """Return how many rows restrict would remove now."""
        with closing(Restriction(self._storage, self._scoring, self._scratch)) as restriction:
            return restriction.count_removals(keep_rows, progress)

    # Restriction of a table that is spread over several variables. REQUIRES: no row changes between these calls.

    def ranked(self) -> Restriction:
        """Return the ranks of all rows, which the caller must close."""
        restriction = Restriction(self._storage, self._scoring, self._scratch, self._end_ranking)
        self._rankings += 1
        try:
            with self._storage.writing_without_snapshot():
                restriction.rank(Meter(0, None))
        except BaseException:
            restriction.close()
            raise
        return restriction

    def _end_ranking(self) -> None:
        self._rankings -= 1

    def remove_below(self, restriction: Restriction, limit: ScoreLimit | None) -> int:
        """Remove the rows below a limit (None: all rows); return how many."""
        storage = self._storage
        with storage.writing_without_snapshot():
            before = storage.size
            restriction.remove_below(limit, Meter(0, None))
            removed = before - storage.size
        storage.log.commit()
        return removed

    def new_rows(self, keys: Keys, values: Values) -> RowBlock:
        """Return new rows as they would be created now, marked clean; they are put in no tier."""
        rows = self._factory.rows(keys, values, self._scoring.first(self._storage.step), self._storage.step)
        rows.flags[:] = 0
        return rows
