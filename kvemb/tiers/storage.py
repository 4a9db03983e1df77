"""The two tiers of one variable: where each row is, who may come in, and the only thing that moves rows.

Exactly one place counts for a row: its hot cell, else the spill buffer (dirty, readable from memory), else the cold
store. One lock a variable makes each call atomic per key; it is free while cold rows are read, and what changed
meanwhile is read again (kvemb.tiers.locate). What a call does to the rows it finds is kvemb.tiers.operations's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kvemb.contracts import ColdStore, Recorder, WriteLog
from kvemb.errors import ColdStoreError
from kvemb.interrupts import result_of, uninterrupted, wait_for
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.codec import order_keys
from kvemb.rows.hashing import Keys, Positions
from kvemb.rows.schema import LAST_KEY, Schema
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.tiers.checking import tier_findings
from kvemb.tiers.dirty_snapshot import DirtySnapshot
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.locate import Located, Locator
from kvemb.tiers.spill import SpillBuffer

# Dirty rows that one write to the cold store takes.
WRITE_ROWS = 65_536


class TieredStorage:
    """One variable's rows over its hot tables, its spill buffer and its cold store.

    executor: the one thread that writes spills behind. readers: threads that read ahead. spill_rows: of a spill pile.
    recorder: told which rows change in the cold store. log: makes each write durable before its call returns.
    size: rows in both tiers, exact. step: calls that recorded uses, ever. counts: of what was done; see stats().
    """

    def __init__(
        self,
        schema: Schema,
        hot_tables: HotTables,
        cold: ColdStore,
        *,
        state: StoreState,
        executor: Executor,
        readers: Executor,
        spill_rows: int,
        recorder: Recorder | None = None,
        log: WriteLog | None = None,
        size: int = 0,
        step: int = 0,
    ) -> None:
        self.schema, self.hot_tables, self.cold, self.state = schema, hot_tables, cold, state
        self.size, self.step, self.counts = size, step, Stats()
        self._recorder, self._log = recorder, log
        self._lock = threading.Lock()
        self._executor, self._spill_rows = executor, spill_rows
        self._cut: DirtySnapshot | None = None
        self._cut_over = threading.Event()
        self._cut_over.set()
        self._spill = SpillBuffer(schema, spill_rows, executor, self._write, self._forget)
        self._where = Locator(hot_tables, self._spill, cold, state, self._lock, readers, spill_rows // 2, self.counts)

    # Who may come in.

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Hold the lock for a call that reads; yields whether uses are kept. Raises Closed."""
        self.state.check_here()
        self._wait_for_room()
        with self._lock, uninterrupted(), self.counts.timed("lookup"):
            self.state.check_open()
            if self.state.keeps_uses:
                try:
                    self._spill.poll()
                except ColdStoreError as error:
                    self.state.poison(error)
            yield self.state.keeps_uses

    @contextmanager
    def writing(self, *, uncut: bool = False) -> Iterator[None]:
        """Hold the lock for a call that changes rows. uncut: while no cut is being written.

        With a log the call is durable when the block has ended. Raises Closed, ReadOnly, Poisoned.
        """
        self.state.check_here()
        self._wait_for_room()
        with self._uncut() if uncut else self._lock, uninterrupted(), self.counts.timed("update"):
            self.state.check_writable()
            with self._poisoning():
                self._spill.poll()
            yield
        if self._log is not None:
            with self._poisoning():
                self._log.commit()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold every other call of this variable off for as long as the block runs."""
        self.state.check_here()
        with self._lock, uninterrupted():
            yield

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Hold every other call off, whatever the store's health, while the block runs. No cold read outlasts it."""
        with self._lock, uninterrupted():
            yield
            self._where.settle()

    @contextmanager
    def _uncut(self) -> Iterator[None]:
        """Take the lock while no cut is being written."""
        self.state.check_here()
        while True:
            wait_for(self._cut_over)
            with self._lock:
                if self._cut is None:
                    yield
                    return

    def _wait_for_room(self) -> None:
        cut = self._cut
        if cut is not None:
            cut.wait_for_room()

    @contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Turn a failed write into Poisoned, for this call and all later ones; whatever else fails, for later ones."""
        try:
            yield
        except ColdStoreError as error:
            self.state.poison(error)
            self.state.check_writable()
        except Exception as error:
            self.state.poison(error)
            raise

    # Finding and moving rows. REQUIRES: reading() or writing(), but for read_ahead().

    @contextmanager
    def located(self, keys: Keys) -> Iterator[Located]:
        """Find distinct keys, whose rows may change from here on. The lock is free while cold rows are read."""
        with self._where.located(keys) as at:
            self.keep(at.keys, at.cells)
            yield at

    def read_ahead(self, keys: Keys) -> None:
        """Start reading the cold ones of distinct keys on another thread. Takes the lock itself."""
        self.state.check_here()
        with self._lock:
            self.state.check_open()
            self._where.read_ahead(keys)

    def keep(self, keys: Keys, cells: Positions | None = None) -> None:
        """These hot rows may change now, so that a cut being written takes them first. cells: where, if known."""
        if self._cut is not None:
            self._cut.keep(keys, cells)

    def admit(self, at: Located, *, by_score: bool = False) -> None:
        """Offer at.rows to the hot tier; dirty rows that must leave for them go to the spill buffer.

        Rows of keys that did not exist are there, and counted, from here on. by_score: rows that do not outscore what
        is hot stay out. Whatever fails here poisons the store: rows may be half-way between two places.
        """
        if len(at.rows) == 0:
            return
        left: list[RowBlock] = []
        with self._poisoning():
            try:
                for keys, leaving in self.hot_tables.insert(at.rows, at.cold_owners, by_score=by_score):
                    left.append(leaving)
                    self._spill.discard(keys)  # only now that they are hot, or leave
                self.size += int(np.count_nonzero(~at.exists))
                self.counts.promotions += len(at.rows)
                if self._cut is not None:
                    for leaving in left:
                        self._cut.keep_leaving(leaving)
            finally:
                self._spill.append(left)

    def to_spill(self, rows: RowBlock) -> None:
        """Put dirty rows that are not hot into the spill buffer."""
        with self._poisoning():
            self._spill.append([rows])

    def remove(self, keys: Keys) -> None:
        """Drop rows of distinct keys, all present. Removals reach the cold store in order with spilled rows."""
        removals = RowBlock(self.schema, len(keys))
        removals.keys[:] = keys
        removals.flags[:] = DIRTY | REMOVED
        owners = self.hot_tables.of(keys)
        with self._poisoning():
            for table, places in self.hot_tables.parts(owners):
                table.remove(table.find(keys[places]))
            # Counted first: the spill buffer keeps the removals even where a write fails.
            self.size -= len(keys)
            self._spill.append([removals])
        if self._log is not None:
            with self._poisoning():
                self._log.removed(order_keys(keys, self.schema), self.step)

    def clear(self) -> None:
        """Drop every row. REQUIRES: writing(uncut=True)."""
        with self._poisoning():
            # In this order a failure loses nothing.
            self._spill.settle()
            self.cold.clear()
            if self._recorder is not None:
                self._recorder.record_cleared()
            self._spill.clear()
        self._empty_hot()
        self.size = 0
        if self._log is not None:
            with self._poisoning():
                self._log.cleared(self.step)

    def log_located(self, at: Located) -> None:
        """Log rows that were just changed where they are: hot, or on their way there."""
        if self._log is not None:
            for table, places in self.hot_tables.parts(at.owners):
                cells = at.cells[places]
                if len(hot := cells[cells >= 0]):
                    self.log_rows(table.block.select(hot))
            self.log_rows(at.rows)

    def log_rows(self, rows: RowBlock) -> None:
        """Log rows as they are now."""
        if self._log is not None:
            with self._poisoning():
                self._log.rows(rows, self.step)

    @property
    def logging(self) -> bool:
        """Whether writes are logged."""
        return self._log is not None

    def write_dirty(self) -> None:
        """Bring the cold store up to date. REQUIRES: no cut is being written."""
        with self._poisoning():
            self._spill.drain()
            for table in self.hot_tables.tables:
                for cells, rows in table.dirty_batches(WRITE_ROWS):
                    self._write(rows)
                    self._forget(rows.keys)
                    table.block.flags[cells] &= ~np.uint8(DIRTY)

    def _write(self, rows: RowBlock) -> None:
        """Write rows to the cold store: on the executor's thread without the lock, or by write_dirty()."""
        try:
            with self.counts.timed("spill"):
                self.record(rows.keys)
                self.cold.write(rows)
        except ColdStoreError:
            raise
        except Exception as error:
            # Whatever it was, these rows are not in the cold store, and memory must keep them.
            raise ColdStoreError(f"the cold store did not take {len(rows)} rows: {error}") from error
        self.counts.spills += len(rows)

    def _forget(self, keys: Keys) -> None:
        self._where.forget(keys)

    def _empty_hot(self) -> None:
        """Let no row be hot, and use nothing that was read of the cold store before."""
        for table in self.hot_tables.tables:
            table.clear()
        self._where.forget(None)

    # From one durable point to the next; see kvemb.durability.checkpointer.

    def ease(self) -> None:
        """Write what waits to be spilled, without holding others off, so that a cut that follows is short."""
        with self._lock, uninterrupted():
            self.state.check_writable()
            with self._poisoning():
                writing = self._spill.hand_over()
        if writing is not None:
            with suppress(ColdStoreError):  # whoever comes next meets it
                result_of(writing)

    def begin_cut(self) -> DirtySnapshot:
        """Keep the state of this instant until end_cut(). REQUIRES: held, and no other cut.

        What waits to be spilled has been given to the executor when it returns.
        """
        with self._poisoning():
            self._spill.hand_over()
        cut = DirtySnapshot(self.schema, self.hot_tables, self._lock, self._executor, self._forget, self._spill_rows)
        cut.begin()
        self._cut_over.clear()
        self._cut = cut
        return cut

    def end_cut(self) -> None:
        """Forget the cut, if there is one."""
        with self._lock:
            if self._cut is not None:
                self._cut.end()
                self._cut = None
                self._cut_over.set()

    def hot_keys(self) -> npt.NDArray[np.uint64]:
        """Return the keys (codec.order_keys) of all hot rows, in no order. REQUIRES: held."""
        keys = [table.block.keys[table.occupied()] for table in self.hot_tables.tables]
        return order_keys(np.concatenate(keys), self.schema)

    # In bulk.

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        """Return rows in key order, batch by batch, as they are now. The lock is free while they are consumed.

        first, last: bounds (codec.order_keys), both included.
        """
        with self._uncut(), uninterrupted():
            self.state.check_open()
            if not self.state.read_only:
                self.state.check_writable()
                self.write_dirty()
            return self.cold.scan(batch_rows, first, last)

    @contextmanager
    def taking_in(self) -> Iterator[ColdStore]:
        """Hold every other call off, and yield the cold store once it has every row, for what bypasses the hot tier."""
        with self._uncut():
            self.state.check_writable()
            with uninterrupted():
                self.write_dirty()
            yield self.cold

    def take_in(self, give: Callable[[], None], added: int, step: int) -> None:
        """Run give(), which puts recorded rows into the cold store; nothing is hot after. REQUIRES: taking_in().

        added: rows that are new. step: the last of theirs.
        """
        with uninterrupted(), self._poisoning():
            give()
            self._empty_hot()
            self.size, self.step = self.size + added, max(self.step, step)

    def show(self, cold: ColdStore, size: int, step: int) -> None:
        """Be the rows of another cold store. REQUIRES: closing(), and no row that is dirty."""
        self._empty_hot()
        self.cold, self.size, self.step = cold, size, step
        self._where.show(cold)

    def advance(self, step: int) -> None:
        """Count steps on from this one, if it is a later one."""
        with self._lock:
            self.step = max(self.step, step)

    def record(self, keys: Keys) -> None:
        """These rows are about to change in the cold store."""
        if self._recorder is not None:
            self._recorder.record(order_keys(keys, self.schema))

    def settled(self) -> int:
        """See contracts.Recorder.settled."""
        return 0 if self._recorder is None else self._recorder.settled()

    # What is there.

    def check(self) -> list[str]:
        """Return what is wrong with the rows of both tiers. Dirty rows are written first."""
        with self._uncut(), uninterrupted():
            self.state.check_writable()
            self.write_dirty()
            return list(tier_findings(self.hot_tables, self.cold, self.size, self.schema))

    def stats(self) -> Stats:
        """Return the counts so far, a copy, with what is in each tier now."""
        self.state.check_here()
        with self._lock:
            return replace(
                self.counts,
                rows=self.size,
                rows_hot=self.hot_tables.size,
                rows_waiting=self._spill.rows,
                bytes_hot=self.hot_tables.nbytes,
                bytes_cold=0 if self.state.closed else self.cold.disk_bytes(),
            )
