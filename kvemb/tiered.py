"""One variable's rows over the hot and the cold tier: the only actor that moves rows.

A row is in exactly one of: a hot cell, the spill buffer (dirty, readable from memory), the cold store. One lock a
variable makes each call atomic per key; it is free while cold rows are read, and what changed meanwhile is read again
(kvemb.locate). Batches are taken in chunks, so that memory for one call is bounded beside the caller's own arrays.

Every method takes checked arguments (kvemb.variable): keys int64 (n,), values contiguous (n, dim).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.checking import tier_findings
from kvemb.codec import order_keys, unordered_keys
from kvemb.contracts import ColdStore, Mask, Recorder, RowKernels, Values, WriteLog
from kvemb.cut import Cut
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.hashing import Keys, Positions, Unique, kernel
from kvemb.health import Health
from kvemb.initializers import Initializer
from kvemb.interrupts import uninterrupted
from kvemb.locate import Located, Locator
from kvemb.meter import Meter, Progress
from kvemb.optimizers import Optimizer
from kvemb.restrict import FrequencyRestrictPolicy, RestrictPolicy, ScoreRule
from kvemb.rows import DIRTY, REMOVED, RowBlock
from kvemb.schema import LAST_KEY, Schema
from kvemb.selection import Spool
from kvemb.shards import Shards
from kvemb.spill import SpillBuffer
from kvemb.stats import Stats

CHUNK_ROWS = 65_536


@kernel
def _sum_rows(inverse: Any, grads: Any, out: Any) -> None:
    for i in range(len(inverse)):
        for j in range(grads.shape[1]):
            out[inverse[i], j] += grads[i, j]


class Tiered:
    """Rows by key over both tiers.

    executor: the one thread that writes spills behind. readers: threads that read ahead. spill_rows: of a spill pile.
    scratch: a folder for temporary files. recorder: told which rows change in the cold store. log: makes each write
    durable before its call returns. size: rows in both tiers, exact. step: calls that recorded uses, ever.
    """

    def __init__(
        self,
        schema: Schema,
        shards: Shards,
        cold: ColdStore,
        *,
        initializer: Initializer,
        optimizer: Optimizer | None,
        policy: RestrictPolicy | None,
        health: Health,
        executor: Executor,
        readers: Executor,
        spill_rows: int,
        scratch: Path | None = None,
        recorder: Recorder | None = None,
        log: WriteLog | None = None,
        size: int = 0,
        step: int = 0,
    ) -> None:
        self.schema, self.shards, self.cold = schema, shards, cold
        self.size, self.step = size, step
        self._initializer, self._optimizer = initializer, optimizer
        # Without a policy the hot tier still needs an order to evict by: the number of uses does best (DESIGN).
        self._policy = policy or FrequencyRestrictPolicy()
        self._health, self._scratch, self._recorder, self._log = health, scratch, recorder, log
        self._lock = threading.Lock()
        self._stats = Stats()
        self._spill = SpillBuffer(schema, spill_rows, executor, self._write, self._written)
        self._executor, self._spill_rows = executor, spill_rows
        self._cut: Cut | None = None
        self._cut_over = threading.Event()
        self._cut_over.set()
        self._where = Locator(shards, self._spill, cold, health, self._lock, readers, spill_rows // 2, self._stats)

    @property
    def _kernels(self) -> RowKernels:
        return self.shards.tables[0]

    # Reading.

    def lookup(self, keys: Keys, out: Values, exists: Mask | None, *, touch: bool) -> None:
        """Fill out (n, dim) with the rows of keys, the initializer's for missing ones, and exists (n,) if given."""
        with self._reading("lookup") as touching:
            touch = touch and touching
            if touch:
                self.step += 1
                self._keep(keys)
            now = self._policy.now(self.step)
            cells = np.empty(len(keys), np.int64)
            for table, places in self.shards.split(keys):
                whole = isinstance(places, slice)
                part = out if whole else np.empty((len(places), self.schema.dim), out.dtype)
                cells[places] = table.lookup(keys[places], part, self._policy.rule if touch else None, now)
                if not whole:
                    hot = cells[places] >= 0
                    out[places[hot]] = part[hot]
            if touch and self._policy.rule is ScoreRule.CUSTOM:
                self._use_hot(keys[cells >= 0], now)
            missing = np.flatnonzero(cells < 0)
            self._stats.hits += len(keys) - len(missing)
            self._stats.misses += len(missing)
        if exists is not None:
            exists[:] = cells >= 0
        if len(missing):
            self._lookup_cold(keys, missing, out, exists, now if touch else None)

    def _lookup_cold(self, keys: Keys, missing: Positions, out: Values, exists: Mask | None, now: float | None) -> None:
        """Fill in what lookup did not find hot. now None: uses are not recorded."""
        distinct = Unique(keys[missing])
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, len(distinct.keys))
            values = np.empty((stop - start, self.schema.dim), out.dtype)
            with self._reading("lookup"), self._located(distinct.keys[start:stop]) as at:
                hot = np.flatnonzero(at.cells >= 0)
                absent = at.cold[~at.exists]
                rows = at.rows if at.exists.all() else at.rows.select(at.exists)
                used = now is not None and self._health.keeps_uses
                if used:
                    self._use_rows(rows, now or 0.0, distinct.counts[start:stop][at.cold[at.exists]])
                    self._use_hot(at.keys[hot], now or 0.0, distinct.counts[start:stop][hot])
                self._gather_hot(at, hot, values)
                found = np.empty((len(rows), self.schema.dim), out.dtype)
                self._kernels.gather(rows, np.arange(len(rows)), found)
                values[at.cold[at.exists]] = found
                values[absent] = self._initializer.rows(at.keys[absent], self.schema.dim, out.dtype)
                self._stats.absent += int(distinct.counts[start:stop][absent].sum())
                if self._health.cause is None:
                    # A spill that fails here poisons the store; its rows stay in memory, and reading goes on.
                    with suppress(Poisoned):
                        self._admit(rows, by_score=not used)
                here = np.ones(stop - start, np.bool_)
                here[absent] = False
            chosen = np.flatnonzero((distinct.inverse >= start) & (distinct.inverse < stop))
            places, source = missing[chosen], distinct.inverse[chosen] - start
            out[places] = values[source]
            if exists is not None:
                exists[places] = here[source]

    def scores(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return each key's score, NaN where it is absent. Does not count as a use; promotes nothing."""
        distinct = Unique(keys)
        scores = np.full(len(distinct.keys), np.nan)
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            stop = start + CHUNK_ROWS
            with self._reading("lookup"), self._located(distinct.keys[start:stop]) as at:
                part = scores[start:stop]
                for table, places in self.shards.split(at.keys):
                    cells = at.cells[places]
                    part[places] = np.where(cells >= 0, table.block.scores[cells], part[places])
                part[at.cold[at.exists]] = at.rows.scores[at.exists]
        return scores[distinct.inverse]

    def prefetch(self, keys: Keys) -> None:
        """Start reading the cold rows of keys, on another thread, for the call that follows. Changes no result."""
        with self._lock:
            self._health.check_open()
            self._where.read_ahead(Unique(keys).keys)

    def warm(self, keys: Keys) -> None:
        """Make rows hot, as far as they outscore what is. Keys are distinct; those that do not exist are ignored."""
        for start in range(0, len(keys), CHUNK_ROWS):
            with self._reading("lookup"), self._located(keys[start : start + CHUNK_ROWS]) as at:
                self._admit(at.rows.select(at.exists), by_score=True)

    # Writing.

    def upsert(self, keys: Keys, values: Values) -> None:
        """Insert rows or replace their embeddings; of duplicate keys the last wins."""
        for start in range(0, len(keys), CHUNK_ROWS):
            self._upsert(keys[start : start + CHUNK_ROWS], values[start : start + CHUNK_ROWS])

    def _upsert(self, keys: Keys, values: Values) -> None:
        with self._writing():
            score = self._first_score()
            self._keep(keys)
            cells = np.empty(len(keys), np.int64)
            for table, places in self.shards.split(keys):
                cells[places] = table.upsert(keys[places], values[places], self.step)
                if self._log is not None:
                    changed = np.unique(cells[places])
                    self._log_rows(table.block.select(changed[changed >= 0]))
            missing = np.flatnonzero(cells < 0)
            if len(missing):
                self._upsert_missing(keys[missing], values[missing], score)

    def _upsert_missing(self, keys: Keys, values: Values, score: float) -> None:
        distinct = Unique(keys)
        values = values[distinct.last]
        with self._located(distinct.keys) as at:
            for table, places in self.shards.split(at.keys):
                table.assign(table.block, at.cells[places], values[places], self.step)
            self._create(at, score)
            self._kernels.assign(at.rows, np.arange(len(at.rows)), values[at.cold], self.step)
            self._log_located(at)
            self._admit(at.rows)

    def accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        """Add new - old to keys that exist as the caller believes; insert new where both say absent; else ignore."""
        for start in range(0, len(keys), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            self._accum(keys[part], old[part], new[part], exists[part])

    def _accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        distinct = Unique(keys)
        inverse, n = distinct.inverse, len(keys)
        with self._writing(), self._located(distinct.keys) as at:
            score = self._first_score()
            present = at.cells >= 0
            present[at.cold] = at.exists
            # An absent key is inserted by its first occurrence that says absent; later ones add to it.
            inserting = np.flatnonzero(~exists & ~present[inverse])
            inserted_at = np.full(len(distinct.keys), n)
            inserted_at[inverse[inserting][::-1]] = inserting[::-1]
            inserted_at[present] = -1
            adding = np.flatnonzero(exists & (np.arange(n) > inserted_at[inverse]))
            for table, places in self.shards.split(at.keys):
                cells = np.full(len(at.keys), -1, np.int64)
                cells[places] = at.cells[places]
                table.add(table.block, cells[inverse[adding]], old[adding], new[adding], self.step)
            kept = at.exists | (inserted_at[at.cold] < n)
            at = replace(
                at, cold=at.cold[kept], rows=at.rows.select(kept), exists=at.exists[kept], known=at.known[kept]
            )
            self._create(at, score)
            made = np.flatnonzero(~at.exists)
            self._kernels.assign(at.rows, made, new[inserted_at[at.cold[made]]], self.step)
            row_of = np.full(len(at.keys), -1, np.int64)
            row_of[at.cold] = np.arange(len(at.cold))
            self._kernels.add(at.rows, row_of[inverse[adding]], old[adding], new[adding], self.step)
            self._log_located(at)
            self._admit(at.rows)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take one optimizer step on each distinct key; gradients of duplicates are summed in order first."""
        assert self._optimizer is not None
        distinct = Unique(keys)
        if distinct.repeated:
            # From -0.0, which added to any number gives that number: what a key gets does not hang on its batch.
            summed = np.full((len(distinct.keys), self.schema.dim), -0.0, grads.dtype)
            _sum_rows(distinct.inverse, grads, summed)
            grads = summed
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            part = grads[start : start + CHUNK_ROWS]
            with self._writing(), self._located(distinct.keys[start : start + CHUNK_ROWS]) as at:
                score = self._first_score()
                for table, places in self.shards.split(at.keys):
                    table.apply(table.block, at.cells[places], self._optimizer, part[places], self.step)
                self._create(at, score)
                rows = np.arange(len(at.rows))
                self._kernels.apply(at.rows, rows, self._optimizer, part[at.cold], self.step)
                self._log_located(at)
                self._admit(at.rows)

    def put(self, rows: RowBlock, step: int) -> None:
        """Replace whole rows, of distinct keys: embedding, slots, score, step of last change. step: of the tier."""
        for start in range(0, len(rows), CHUNK_ROWS):
            part = rows.part(start, min(start + CHUNK_ROWS, len(rows)))
            part.flags[:] = DIRTY
            with self._writing(), self._located(part.keys) as at:
                for table, places in self.shards.split(at.keys):
                    cells = at.cells[places]
                    hot = np.arange(len(part))[places][cells >= 0]
                    table.block.put(cells[cells >= 0], part.select(hot))
                self.size += int(np.sum(~at.exists))
                self.step = max(self.step, step)
                with self._poisoning():
                    self._spill.append([part.select(at.cold)])
                self._log_rows(part)

    def remove(self, keys: Keys) -> None:
        """Drop rows with their slots and scores; missing keys are ignored."""
        distinct = Unique(keys).keys
        for start in range(0, len(distinct), CHUNK_ROWS):
            with self._writing(), self._located(distinct[start : start + CHUNK_ROWS]) as at:
                present = at.cells >= 0
                present[at.cold] = at.exists
                self._remove(at.keys[present])

    def _remove(self, keys: Keys) -> None:
        """REQUIRES: the lock; keys are distinct and present."""
        for table, places in self.shards.split(keys):
            table.remove(table.find(keys[places]))
        removals = RowBlock(self.schema, len(keys))
        removals.keys[:] = keys
        removals.flags[:] = DIRTY | REMOVED
        # Counted first: append keeps the removals even where it raises.
        self.size -= len(keys)
        with self._poisoning():
            self._spill.append([removals])
            if self._log is not None:
                self._log.removed(order_keys(keys, self.schema), self.step)

    def clear(self) -> None:
        """Drop every row."""
        with self._writing(uncut=True):
            with self._poisoning():
                # In this order a failure loses nothing.
                self._spill.settle()
                self.cold.clear()
                if self._recorder is not None:
                    self._recorder.record_cleared()
                self._spill.clear()
            for table in self.shards.tables:
                table.clear()
            self._where.forget(None)
            self.size = 0
            with self._poisoning():
                if self._log is not None:
                    self._log.cleared(self.step)

    def use(self, keys: Keys) -> None:
        """Record one use of each occurrence of keys that exist."""
        distinct = Unique(keys)
        self._health.check_writable()
        with self._lock:
            self.step += 1
        for start in range(0, len(distinct.keys), CHUNK_ROWS):
            counts = distinct.counts[start : start + CHUNK_ROWS]
            with self._writing(), self._located(distinct.keys[start : start + CHUNK_ROWS]) as at:
                now = self._policy.now(self.step)
                hot = np.flatnonzero(at.cells >= 0)
                rows = at.rows.select(at.exists)
                self._use_rows(rows, now, counts[at.cold[at.exists]])
                self._use_hot(at.keys[hot], now, counts[hot])
                self._log_located(replace(at, rows=rows))
                self._admit(rows)

    def restrict(self, keep_rows: int, trigger_rows: int | None, progress: Progress | None = None) -> int:
        """Keep the `keep_rows` highest scores over both tiers, ties to the larger key; returns how many rows left.

        Does nothing unless there are more than trigger_rows.

        Dirty rows are written first, so that one scan of the cold store sees every score. The scan spools 16 bytes a
        row to a temporary file, from which the limit is found; memory does not depend on the number of rows.
        """
        with self._writing(uncut=True):
            before = self.size
            if keep_rows >= before or (trigger_rows is not None and before <= trigger_rows):
                return 0
            self._write_dirty()
            with Spool(self._scratch) as spool:
                meter = Meter(2 * before - keep_rows, progress)
                for rows in self.cold.scan(CHUNK_ROWS):
                    spool.append(rows.scores, order_keys(rows.keys, self.schema))
                    meter(len(rows))
                for ordered in spool.below_cut(keep_rows):
                    self._remove(unordered_keys(ordered, self.schema))
                    meter(len(ordered))
            with self._poisoning():
                self._spill.drain()
            return before - self.size

    # Making durable, and reading in bulk.

    def ease(self) -> None:
        """Write what waits to be spilled, without holding others off, so that a cut that follows is short."""
        with self._lock, uninterrupted():
            self._health.check_writable()
            with self._poisoning():
                writing = self._spill.hand_over()
        if writing is not None:
            wait([writing])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold every other call of this variable off for as long as the block runs."""
        with self._lock, uninterrupted():
            yield

    def begin_cut(self) -> Cut:
        """Keep the state of this instant until end_cut(). REQUIRES: held, and no other cut.

        What waits to be spilled has been given to the executor when it returns.
        """
        with self._poisoning():
            self._spill.hand_over()
        cut = Cut(self.schema, self.shards, self._lock, self._executor, self._where.forget, self._spill_rows)
        cut.begin()
        self._cut_over.clear()
        self._cut = cut
        return cut

    def hot_keys(self) -> npt.NDArray[np.uint64]:
        """Return the keys (codec.order_keys) of all hot rows, in no order. REQUIRES: held."""
        keys = [table.block.keys[table.occupied()] for table in self.shards.tables]
        return order_keys(np.concatenate(keys), self.schema)

    def end_cut(self) -> None:
        """Forget the cut, if there is one."""
        with self._lock:
            if self._cut is not None:
                self._cut.end()
                self._cut = None
                self._cut_over.set()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Hold every other call off, whatever the store's health, while the block runs. No cold read outlasts it."""
        with self._lock, uninterrupted():
            yield
            self._where.settle()

    def check(self) -> list[str]:
        """Return what is wrong with the rows of both tiers. Dirty rows are written first."""
        with self._uncut(), uninterrupted():
            self._health.check_writable()
            self._write_dirty()
            return list(tier_findings(self.shards, self.cold, self.size, self.schema))

    def show(self, cold: ColdStore, size: int, step: int) -> None:
        """Be the rows of another cold store. REQUIRES: closing(), and no row that is dirty."""
        for table in self.shards.tables:
            table.clear()
        self.cold, self.size, self.step = cold, size, step
        self._where.show(cold)

    @contextmanager
    def taking_in(self) -> Iterator[ColdStore]:
        """Hold every other call, and yield the cold store, which has all rows, for what goes past the hot tier."""
        with self._uncut():
            self._health.check_writable()
            with uninterrupted():
                self._write_dirty()
            yield self.cold

    def take_in(self, give: Callable[[], None], added: int, step: int) -> None:
        """Let the cold store have rows that were recorded; nothing is hot after. REQUIRES: taking_in()."""
        with uninterrupted(), self._poisoning():
            give()
            for table in self.shards.tables:
                table.clear()
            self._where.forget(None)
            self.size, self.step = self.size + added, max(self.step, step)

    def advance(self, step: int) -> None:
        """Count steps on from this one, if it is a later one."""
        with self._lock:
            self.step = max(self.step, step)

    def record(self, keys: Keys) -> None:
        """These rows are about to change in the cold store."""
        if self._recorder is not None:
            self._recorder.record(order_keys(keys, self.schema))

    def turn(self) -> int:
        """See contracts.Recorder.turn."""
        return 0 if self._recorder is None else self._recorder.turn()

    def new_rows(self, keys: Keys, values: Values) -> RowBlock:
        """Return rows with the slots and the score of one that is made now."""
        rows = RowBlock(self.schema, len(keys))
        rows.keys[:] = keys
        self._kernels.assign(rows, np.arange(len(keys)), values, self.step)
        rows.flags[:] = 0
        self._begin(rows, self._first_score())
        return rows

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        """Return rows in key order, batch by batch, as they are now. The lock is free while they are consumed.

        first, last: bounds (codec.order_keys), both included.
        """
        with self._uncut(), uninterrupted():
            self._health.check_open()
            if not self._health.read_only:
                self._health.check_writable()
                self._write_dirty()
            return self.cold.scan(batch_rows, first, last)

    def stats(self) -> Stats:
        """Return the counts so far, a copy."""
        with self._lock:
            return replace(
                self._stats,
                rows=self.size,
                rows_hot=self.shards.size,
                rows_waiting=self._spill.rows,
                bytes_hot=self.shards.nbytes,
                bytes_cold=0 if self._health.closed else self.cold.disk_bytes(),
            )

    # Below, the lock is held.

    @contextmanager
    def _located(self, keys: Keys) -> Iterator[Located]:
        """Find distinct keys, whose rows may change from here on."""
        with self._where.located(keys) as at:
            self._keep(at.keys, at.cells)
            yield at

    def _keep(self, keys: Keys, cells: Positions | None = None) -> None:
        if self._cut is not None:
            self._cut.keep(keys, cells)

    @contextmanager
    def _uncut(self) -> Iterator[None]:
        """Take the lock while no cut is being written."""
        while True:
            self._cut_over.wait()
            with self._lock:
                if self._cut is None:
                    yield
                    return

    @contextmanager
    def _reading(self, what: str) -> Iterator[bool]:
        """Hold the lock for a call that reads; yields whether uses are kept."""
        self._wait_for_room()
        with self._lock, uninterrupted(), self._stats.timed(what):
            self._health.check_open()
            if self._health.keeps_uses:
                try:
                    self._spill.poll()
                except ColdStoreError as error:
                    self._health.poison(error)
            yield self._health.keeps_uses

    @contextmanager
    def _writing(self, *, uncut: bool = False) -> Iterator[None]:
        self._wait_for_room()
        with self._uncut() if uncut else self._lock, uninterrupted(), self._stats.timed("update"):
            self._health.check_writable()
            with self._poisoning():
                self._spill.poll()
            yield
        if self._log is not None:
            with self._poisoning():
                self._log.commit()

    def _log_rows(self, rows: RowBlock) -> None:
        if self._log is not None:
            with self._poisoning():
                self._log.rows(rows, self.step)

    def _log_located(self, at: Located) -> None:
        """Log the rows that were just changed where they are: hot, or on their way there."""
        if self._log is not None:
            for table, places in self.shards.split(at.keys):
                cells = at.cells[places]
                if len(hot := cells[cells >= 0]):
                    self._log_rows(table.block.select(hot))
            self._log_rows(at.rows)

    @contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Turn a failed write into Poisoned, for this call and all later ones."""
        try:
            yield
        except ColdStoreError as error:
            self._health.poison(error)
            self._health.check_writable()

    def _wait_for_room(self) -> None:
        cut = self._cut
        if cut is not None:
            cut.wait_for_room()

    def _first_score(self) -> float:
        """The score of a row made now. Asked for before anything changes, as a user's policy may raise."""
        start = np.array([self._policy.initial_score], np.float64)
        return float(self._policy.checked_score(start, np.ones(1, np.int64), self._policy.now(self.step))[0])

    def _create(self, at: Located, score: float) -> None:
        """Make the absent rows of `at` new ones: initial embedding and slots, and this score."""
        made = np.flatnonzero(~at.exists)
        if len(made) == 0:
            return
        fresh = RowBlock(self.schema, len(made))
        fresh.keys[:] = at.rows.keys[made]
        rows = self._initializer.rows(fresh.keys, self.schema.dim, self.schema.value_dtype)
        self._kernels.assign(fresh, np.arange(len(made)), rows, self.step)
        self._begin(fresh, score)
        at.rows.put(made, fresh)
        self.size += len(made)

    def _begin(self, rows: RowBlock, score: float) -> None:
        """Give new rows their slots and their score."""
        for number, value in enumerate(self._optimizer.slot_initial() if self._optimizer else ()):
            rows.slot(number)[:] = value
        rows.scores[:] = score

    def _use_rows(self, rows: RowBlock, now: float, counts: Positions) -> None:
        if len(rows):
            rows.scores[:] = self._policy.checked_score(rows.scores, counts, now)
            rows.flags |= DIRTY

    def _use_hot(self, keys: Keys, now: float, counts: Positions | None = None) -> None:
        """Record uses of keys that are hot; without counts one for each occurrence."""
        if counts is None:
            distinct = Unique(keys)
            keys, counts = distinct.keys, distinct.counts
        used = []
        for table, places in self.shards.split(keys):
            cells = table.find(keys[places])
            if len(cells):
                scores = self._policy.checked_score(table.block.scores[cells], counts[places], now)
                used.append((table.block, cells, scores))
        for block, cells, scores in used:
            block.scores[cells] = scores
            block.flags[cells] |= DIRTY

    def _gather_hot(self, at: Located, hot: Positions, values: Values) -> None:
        for table, places in self.shards.split(at.keys[hot]):
            mine = hot[places]
            found = np.empty((len(mine), self.schema.dim), values.dtype)
            table.gather(table.block, at.cells[mine], found)
            values[mine] = found

    def _admit(self, rows: RowBlock, *, by_score: bool = False) -> None:
        """Make rows hot; dirty ones that must leave for them go to the spill buffer."""
        if len(rows) == 0:
            return
        self._stats.promotions += len(rows)
        self._spill.discard(rows.keys)
        left = self.shards.insert(rows, by_score=by_score)
        if self._cut is not None:
            for leaving in left:
                self._cut.keep_leaving(leaving)
        with self._poisoning():
            self._spill.append(left)

    def _write(self, rows: RowBlock) -> None:
        try:
            with self._stats.timed("spill"):
                self.record(rows.keys)
                self.cold.write(rows)
        except ColdStoreError:
            raise
        except Exception as error:
            # Whatever it was, these rows are not in the cold store, and memory must keep them.
            raise ColdStoreError(f"the cold store did not take {len(rows)} rows: {error}") from error
        self._stats.spills += len(rows)

    def _write_dirty(self) -> None:
        with self._poisoning():
            self._spill.drain()
            for table in self.shards.tables:
                for cells, rows in table.dirty_batches(CHUNK_ROWS):
                    self._write(rows)
                    self._where.forget(rows.keys)
                    table.block.flags[cells] &= ~np.uint8(DIRTY)

    def _written(self, keys: Keys) -> None:
        self._where.forget(keys)
