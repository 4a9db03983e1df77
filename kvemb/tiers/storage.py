"""TieredStorage, the tiers of one variable: it knows where each row is, and it alone moves rows.

All entries to a variable's rows and all their moves are here, under one lock.

Exactly one copy of a row counts: that in its hot cell, else that in flight (kvemb.tiers.in_flight), else that in a
memtable, on its way to disk (kvemb.memory.memtables), else that in the cold store. One lock per variable makes each
call atomic per key (kvemb.tiers.access). It is released while cold rows are read; rows that changed meanwhile are read
again (kvemb.tiers.locate). What a call does to the rows that it finds is defined in kvemb.operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvemb.contracts import ColdStore, PlannedChange
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.journal.journal import Journal
from kvemb.limits import Limits
from kvemb.memory.memtables import Memtables
from kvemb.memory.staging import Holding, Staging
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.codec import LAST_KEY, Ordered, order_keys
from kvemb.rows.hashing import Keys
from kvemb.stats import DISK, Stats, TierSize
from kvemb.store_state import StoreState
from kvemb.threads.interrupts import uninterrupted
from kvemb.tiers.access import HeldForCall, TableAccess
from kvemb.tiers.ahead import ReadsAhead
from kvemb.tiers.checking import tier_findings
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.in_flight import RowsInFlight
from kvemb.tiers.locate import Locator, Search, read_together
from kvemb.tiers.located import Located
from kvemb.tiers.reclaimer import Reclaimer
from kvemb.tiers.snapshot import CurrentSnapshot
from kvemb.tiers.write_logging import WriteLogging
from kvemb.timestamp import current_timestamp


class RefreshedState(NamedTuple):
    """A later state of the rows.

    cold: the store that holds them. keys: all keys whose rows may differ. rows: the later rows of some of these keys,
    which stay hot.
    """

    cold: ColdStore
    keys: Keys
    rows: list[RowBlock]


class Staged(NamedTuple):
    """What one variable has of the store's staging, for each use."""

    in_flight: Holding
    ahead: Holding
    copies: Holding


class TieredStorage:
    """One variable's rows over its hot tables, its memtables and its cold store.

    executor: the one thread that writes to the cold store. readers: threads that read ahead. memtable_rows: of a
    memtable. staging: pays for rows in memtables, for those that are read, and for a snapshot's copies. record: called
    with the keys (codec.order_keys) of rows that are about to change in the cold store; record_cleared: called when all
    have been removed. Both None: nobody asks what changed. journal: makes each write durable before its call returns,
    under this name. size: the exact number of rows in both tiers. step: the number of calls that recorded uses, ever.
    optimizer_steps: the number of steps, ever, of optimizers that need it (Optimizer.counts_steps). refreshes: how
    often the rows became those of another durable point. changed: set by each call that changes rows.
    """

    def __init__(
        self,
        hot_tables: HotTables,
        cold: ColdStore,
        *,
        state: StoreState,
        executor: Executor,
        readers: Executor,
        memtable_rows: int,
        staging: Staging,
        limits: Limits,
        record: Callable[[Ordered], None] | None = None,
        record_cleared: Callable[[], None] | None = None,
        journal: Journal | None = None,
        name: str = "",
        size: int = 0,
        step: int = 0,
        optimizer_steps: int = 0,
    ) -> None:
        self.hot_tables, self.cold, self.state = hot_tables, cold, state
        self.schema = schema = hot_tables.schema
        self.size, self.step, self.optimizer_steps, self.limits = size, step, optimizer_steps, limits
        self.counts, self.refreshes, self.changed = Stats(), 0, False
        self._record, self._record_cleared = record, record_cleared
        self.staged = Staged(*(Holding(staging.read) for _ in range(3)))
        self.in_flight = RowsInFlight(self.staged.in_flight, state, self._promote_if_sound)
        self.access = TableAccess(state, self.in_flight)
        self.log = WriteLogging(journal, name, hot_tables, self.access)
        self.memtables = Memtables(
            schema,
            staging.memtables,
            memtable_rows,
            executor,
            self._write,
            self._forget_reads,
            self._write_failed,
            limits,
        )
        own_copies = staging.own_copies(schema, limits)
        self.snapshot = CurrentSnapshot(hot_tables, self.memtables, self.access, own_copies, self.staged.copies, limits)
        self._locator = Locator(
            hot_tables, self.memtables, self.in_flight, cold, self.access, self.counts, limits.cold_parallel_keys
        )
        self.ahead = self._reading_ahead(readers)
        self._reclaimer = Reclaimer(self.access, hot_tables, readers, self._spill)

    def _reading_ahead(self, readers: Executor) -> ReadsAhead:
        ahead, rows = self.staged.ahead, self.limits.ahead_rows
        return ReadsAhead(self.schema, self._locator, self.access, readers, ahead, rows)

    # Entering. The other methods REQUIRE one of these blocks, unless they say otherwise.

    def reading(self, *, land: bool = True) -> AbstractContextManager[None]:
        """Hold the lock for a call that reads. land: see TableAccess.held. Raises Closed."""
        self.access.wait_for_room()
        return HeldForCall(self.access, self._begin_reading, self.counts, "seconds_lookup", land=land)

    def begin_reading_if_free(self) -> bool:
        """Enter the block of reading() if the lock is free; return whether it was entered. end_reading() leaves it.

        REQUIRES: signal handlers are deferred until end_reading(). Raises Closed.
        """
        self.state.check_here()
        if not (self.access.has_room and self.access.take(0)):
            return False
        self._began = time.perf_counter()
        try:
            self._begin_reading()
        except BaseException:
            self.access.leave()
            raise
        return True

    def end_reading(self) -> None:
        """Leave the block that begin_reading_if_free() entered."""
        self.counts.seconds_lookup += time.perf_counter() - self._began
        self.access.leave()

    def _begin_reading(self) -> None:
        self.state.check_open()
        if self.hot_tables.memory.has_work:
            self._reclaimer.reclaim()

    def writing(self) -> AbstractContextManager[None]:
        """Hold the lock for a call that changes rows. Raises Closed, ReadOnly, Poisoned."""
        self.access.wait_for_room()
        return HeldForCall(self.access, self._begin_writing, self.counts, "seconds_update")

    def updating(self) -> AbstractContextManager[None]:
        """Do what writing() does, for an update, which may follow a lookup of its keys: rows in flight stay so."""
        self.access.wait_for_room()
        return HeldForCall(self.access, self._begin_updating, self.counts, "seconds_update", land=False)

    def _begin_updating(self) -> None:
        self._begin_writing()
        self.in_flight.expected = self.in_flight.followed = True

    @contextmanager
    def writing_without_snapshot(self) -> Iterator[None]:
        """Do what writing() does, after waiting until no snapshot is being written."""
        with self.access.held_without_snapshot(), self.counts.timed("update"):
            self._begin_writing()
            yield

    @contextmanager
    def removing(self) -> Iterator[None]:
        """Do what writing() does, for a thread of kvemb's own, which removes rows: rows in flight stay so."""
        self.access.wait_for_room()
        with self.access.held(land=False):
            self._begin_writing()
            yield

    def _begin_writing(self) -> None:
        self.state.check_writable()
        self.changed = True
        if (timestamp := current_timestamp()) is not None:
            self.step = max(self.step, timestamp.step)
        if self.hot_tables.memory.has_work:
            self._reclaimer.reclaim()
            self.state.check_sound()

    def locate(self, keys: Keys, *, changing: bool = True) -> Located:
        """Locate the rows of distinct keys. Releases the lock during cold reads.

        changing: whether the caller may then change them. Raises Closed, Corruption, ColdStoreError.
        """
        search = self.begin_locating(keys)
        if search.reads:
            with self.access.released():
                read_together([search])
        return self.end_locating(search, changing=changing)

    def begin_locating(self, keys: Keys, *, hot: bool = True) -> Search:
        """Begin to locate rows of distinct keys. hot: whether any of them may be hot.

        If it has no reads, end_locating() must follow before the lock is released; else read_together(), without it.
        """
        return self._locator.begin(keys, hot=hot)

    def end_locating(self, search: Search, *, changing: bool = True) -> Located:
        """Do what locate() does, after the reads of a search. Keeps the lock."""
        found = self._locator.end(search)
        if changing:
            self.snapshot.copy_before_change(found.keys, found.cells, found.owners)
        return found

    def in_memory(self, keys: Keys) -> Located:
        """Locate the rows of distinct keys that are in memory; which are elsewhere is left unknown. Reads nothing."""
        return self._locator.in_memory(keys)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Hold the lock during the block, and then wait until all cold reads have ended."""
        with self.access.held():
            yield
            self._locator.wait_for_reads()

    # Moving rows.

    def promote(self, found: Located, *, by_score: bool = False) -> None:
        """Offer found.rows to the hot tables; dirty rows that they evict are spilled.

        From here on, the rows of keys that did not exist exist and are counted. by_score: only rows that outscore hot
        rows become hot. A failure poisons the store, because rows may be half moved.
        """
        if len(found.rows) == 0:
            return
        left: list[RowBlock] = []
        with self.access.poisoning():
            try:
                for keys, leaving in self.hot_tables.insert(found.rows, found.owners_of(found.cold), by_score=by_score):
                    left.append(leaving)
                    self.in_flight.discard(keys)  # not before they are hot or in `left`
                self.size += len(found.exists) - int(np.count_nonzero(found.exists))
                self.counts.promotions += len(found.rows)
            finally:
                self._spill(left)

    def keep_or_promote(self, found: Located, *, by_score: bool) -> None:
        """Keep in flight what was looked up, or promote the rows of it that exist.

        What is kept waits for the update that is expected, or for another thread: one that reads ahead when the lookup
        has ended, and lands it. The next other call that takes the lock lands it.
        """
        if self.state.cause is not None:
            return  # rows stay where they are, and those in flight keep their uses
        awaited = self.in_flight.expected and not by_score
        briefly = self.ahead.follows_lookup and self.ahead.lands(awaited=awaited)
        not_kept: Located | None = found
        with self.access.poisoning():
            self.in_flight.discard(found.rows.keys)  # another lookup's uses of them are in found, too
            self.in_flight.land(learn=False)  # an earlier part of this lookup, or of one beside it
            # Not during a snapshot: when they land, rows may have to be copied, for which callers must have waited.
            if (briefly or awaited) and not self.snapshot.under_way:
                with suppress(MemoryError):  # then they are offered to the hot tier at once
                    not_kept = self.in_flight.keep(found, by_score, briefly=briefly)
            if not_kept is not None and np.count_nonzero(not_kept.exists):
                self._promote_if_sound(not_kept.with_cold(not_kept.exists), by_score)

    def _promote_if_sound(self, found: Located, by_score: bool) -> None:
        """Promote existing rows, unless the store is poisoned."""
        if self.state.cause is None:
            with suppress(Poisoned):
                self.promote(found, by_score=by_score)

    def replace(self, found: Located, rows: RowBlock, step: int) -> None:
        """Replace located rows by whole, dirty rows, in the order of found.keys; rows that are not hot are spilled."""
        cold = rows.select(found.cold)
        self.hot_tables.prepare(found.owners, len(found.keys), PlannedChange(rows=True))
        with self.access.poisoning():
            self.hot_tables.put(found.cells, found.owners, rows)
            self.size += len(found.exists) - int(np.count_nonzero(found.exists))
            self.step = max(self.step, step)
            self.memtables.add([cold])
            self.in_flight.discard(cold.keys)
            self.log.rows(rows, self.step)

    def remove(self, keys: Keys) -> None:
        """Drop the rows of distinct keys, which all exist. Removals reach the cold store in order with other rows.

        Raises Poisoned if a write of rows has failed since the call on the variable began.
        """
        self.state.check_sound()
        removals = RowBlock(self.schema, len(keys))
        removals.keys[:] = keys
        removals.flags[:] = DIRTY | REMOVED
        owners = self.hot_tables.owners(keys)
        self.hot_tables.prepare(owners, len(keys), PlannedChange())
        with self.access.poisoning():
            self.hot_tables.remove(keys, owners)
            # Counted first, because the memtables keep the removals even if they are interrupted.
            self.size -= len(keys)
            self.memtables.add([removals])
            self.in_flight.discard(keys)
            self.log.removed(keys, self.step)

    def clear(self) -> None:
        """Drop every row. REQUIRES: writing_without_snapshot()."""
        # If it fails, the cold store may have deleted its rows all the same: only the last durable point is whole.
        with self.memtables.paused(), self.access.poisoning():
            self.cold.clear()
            self.memtables.forget()
            if self._record_cleared is not None:
                self._record_cleared()
            self._empty_hot()
            self.size = 0
            self.log.cleared(self.step)

    def count_use(self) -> None:
        """Count one more call that records uses. The step never decreases, whatever the call's timestamp is."""
        timestamp = current_timestamp()
        self.step = self.step + 1 if timestamp is None else max(self.step, timestamp.step)

    def next_optimizer_step(self) -> int:
        """Return the number of the optimizer step in progress."""
        timestamp = current_timestamp()
        return self.optimizer_steps + 1 if timestamp is None else timestamp.optimizer_step

    def count_optimizer_step(self, number: int) -> None:
        """Count the step with this number. REQUIRES: access.poisoning()."""
        self.optimizer_steps = max(self.optimizer_steps, number)
        self.log.counted(self.optimizer_steps, self.step)

    def write_dirty(self) -> None:
        """Write all rows in memory that are newer to the cold store. REQUIRES: no snapshot is being written."""
        for table in self.hot_tables.tables:
            # If a table cannot read or mark rows, none are lost: they stay dirty.
            for cells, rows in table.dirty_batches(self.limits.write_rows):
                self.memtables.add([rows])
                self.state.check_sound()
                table.mark_clean(cells)
        self.flush_memtables()

    def flush_memtables(self) -> None:
        """Write the rows in memtables to the cold store. Raises Poisoned; then they stay."""
        with self.state.keeping_rows():
            self.memtables.flush()

    def _write(self, rows: RowBlock) -> None:
        """Write rows to the cold store. Called on the executor's thread, without the lock."""
        self.snapshot.before_write()
        try:
            with self.counts.timed("cold_write"):
                self.record(rows.keys)
                self.counts.cold_writes += self.cold.write(rows)
        except ColdStoreError:
            raise
        except Exception as error:
            # Whatever failed, these rows are not in the cold store, so they must stay in memory.
            raise ColdStoreError(f"cannot write {len(rows):,} rows to the cold store: {error}") from error

    def _write_failed(self, error: BaseException) -> None:
        self.state.poison(error, intact=isinstance(error, Exception))

    def retry_writes(self) -> None:
        """Take up again what failed of the rows on their way to the cold store. REQUIRES: the failure left rows whole.

        If it fails again, the store is poisoned anew. Takes the lock.
        """
        with self.access.held():
            self.memtables.retry(lambda keys: self.hot_tables.find(keys, self.hot_tables.owners(keys)) >= 0)

    @contextmanager
    def counting_writes(self, rows: int) -> Iterator[None]:
        """Count rows that the block writes to the cold store, and its time. REQUIRES: no other write is in progress."""
        with self.counts.timed("cold_write"):
            yield
        self.counts.cold_writes += rows

    def _spill(self, left: list[RowBlock]) -> None:
        """Take over dirty rows that left the hot tables. REQUIRES: access.poisoning()."""
        try:
            for rows in left:
                self.snapshot.copy_before_leaving(rows)
        finally:
            self.memtables.add(left)

    def _forget_reads(self, keys: Keys) -> None:
        self._locator.forget(keys)

    def _empty_hot(self) -> None:
        """Empty the hot tier, and invalidate earlier reads of the cold store."""
        self.hot_tables.clear()
        self._locator.forget(None)

    def is_clean(self) -> bool:
        """Whether the cold store has all rows, and all their changes are recorded. Takes the lock."""
        with self.access.held():
            if self.memtables.rows:
                return False
            return all(next(table.dirty_batches(1), None) is None for table in self.hot_tables.tables)

    # In bulk. These methods take the lock, unless they say otherwise.

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        """Return all rows as they are now, in key order, in batches. The lock is not held while they are consumed.

        first, last: the bounds as ordered keys (codec.order_keys), inclusive.
        """
        with self.access.held_without_snapshot():
            self.state.check_open()
            if not self.state.read_only:
                self.state.check_writable()
                self.write_dirty()
            return self.cold.scan(batch_rows, first, last)

    @contextmanager
    def bypassing(self) -> Iterator[ColdStore]:
        """Hold the lock, write all dirty rows, and yield the cold store, for work that bypasses the hot tier.

        The block may take long, so signal handlers run in it. They cannot use the variable.
        """
        with self.access.held_without_snapshot(interruptible=True):
            self.state.check_writable()
            with uninterrupted():
                self.write_dirty()
            self.changed = True
            yield self.cold

    def ingest_recorded(self, give: Callable[[], None], added: int, step: int) -> None:
        """Run give(), which puts recorded rows into the cold store; empties the hot tier. REQUIRES: bypassing().

        added: the number of new rows. step: the largest step of the rows.
        """
        with uninterrupted(), self.access.poisoning():
            give()
            self._empty_hot()
            self.size, self.step = self.size + added, max(self.step, step)

    def end(self, state: StoreState) -> None:
        """Refuse every call from now on as this state does; a call in progress ends first, or is refused.

        Rows in memtables are written first, and so recorded before a drop of the variable is. Raises Poisoned.
        """
        with self.closing():
            self.flush_memtables()
            self.refuse(state)

    def refresh(
        self, cold: ColdStore, size: int, step: int, optimizer_steps: int, renewed: RefreshedState | None
    ) -> None:
        """Move to a later durable point: another cold store, with its counts.

        renewed: what differs there; None: unknown. REQUIRES: closing(), and that no row is dirty.
        """
        if renewed is None:
            self._empty_hot()
        else:
            self._renew(renewed)
        self._read_from(cold, size, step, optimizer_steps)

    def _read_from(self, cold: ColdStore, size: int, step: int, optimizer_steps: int) -> None:
        self.cold, self.size, self.step, self.optimizer_steps = cold, size, step, optimizer_steps
        self.refreshes += 1
        self._locator.read_from(cold)

    def discard(self) -> None:
        """Forget all rows that the cold store does not have. REQUIRES: closing(), memtables.paused(), no snapshot."""
        self.in_flight.clear()
        self.memtables.forget()
        self.hot_tables.remove_dirty()

    def go_back(self, cold: ColdStore, size: int, step: int, optimizer_steps: int, changed: Keys | None) -> None:
        """Move to an earlier durable point: another cold store, with its counts.

        changed: all distinct keys whose rows were written to the present cold store since then; None: unknown. Other
        hot rows stay hot. REQUIRES: as discard(), since before `changed` was read.
        """
        gone = None
        with suppress(MemoryError):  # then no row stays hot
            if changed is not None:
                # A row of a memtable may be hot again, and clean.
                gone = np.union1d(changed, self.memtables.keys())
        try:
            self.discard()
            if gone is None:
                self._empty_hot()
            else:
                self.hot_tables.remove(gone, self.hot_tables.owners(gone))
        except MemoryError:  # of a GPU
            self._empty_hot()
        self._read_from(cold, size, step, optimizer_steps)

    def give_back_staging(self) -> None:
        """Give back what it has of the store's staging. REQUIRES: it is not used afterwards."""
        self.memtables.end()
        for holding in self.staged:
            holding.give_back(holding.held)

    def refuse(self, state: StoreState) -> None:
        """Refuse every call from now on as this state does. REQUIRES: closing()."""
        self.state = self.access.state = state

    def _renew(self, renewed: RefreshedState) -> None:
        """Bring the hot rows up to date; if a device lacks memory for it, empty the hot tier."""
        try:
            self.hot_tables.remove(renewed.keys, self.hot_tables.owners(renewed.keys))
            for rows in renewed.rows:
                for _, leaving in self.hot_tables.insert(rows, self.hot_tables.owners(rows.keys)):
                    assert len(leaving) == 0
        except MemoryError:
            self._empty_hot()

    def advance(self, step: int, optimizer_steps: int) -> None:
        """Raise the step counts to these, where these are larger."""
        with self.access.held():
            self.step = max(self.step, step)
            if optimizer_steps > self.optimizer_steps:
                with self.access.poisoning():
                    self.count_optimizer_step(optimizer_steps)

    def record(self, keys: Keys) -> None:
        """Record that these rows are about to change in the cold store. Takes no lock."""
        if self._record is not None:
            self._record(order_keys(keys, self.schema))

    # Findings and counts.

    def check(self) -> list[str]:
        """Return a line for each inconsistency of the two tiers, after writing the dirty rows. Takes the lock."""
        with self.access.held_without_snapshot():
            self.state.check_writable()
            self.write_dirty()
            return list(tier_findings(self.hot_tables, self.cold, self.size))

    def stats(self) -> Stats:
        """Return a copy of the counts so far, with the present size of each tier. Takes the lock."""
        with self.access.held():
            hot, waiting, tiers = self.hot_tables.size, self.memtables.rows, self.hot_tables.sizes()
            disk_bytes = 0 if self.state.closed else self.cold.disk_bytes() + self.memtables.nbytes
            return replace(
                self.counts,
                rows=self.size,
                rows_hot=hot,
                rows_waiting=waiting,
                bytes_hot=self.hot_tables.nbytes,
                bytes_cold=disk_bytes,
                tiers={**tiers, DISK: TierSize(max(0, self.size - hot), 0, disk_bytes)},
            )
