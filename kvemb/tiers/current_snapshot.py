"""The snapshot of one variable's dirty rows that is being written, if any, and the memory for its copies.

The variable's lock guards everything here, except before_write().
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from kvemb.limits import Limits
from kvemb.memory.staging import Holding
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Positions
from kvemb.tiers.access import TableAccess
from kvemb.tiers.dirty_snapshot import DirtySnapshot
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import Owners
from kvemb.tiers.spill import SpillBuffer


class CurrentSnapshot:
    """Begins and ends the snapshots of one variable, one at a time.

    in_order, written: see DirtySnapshot. slot_rows: rows of the slot that belongs to the variable for copies. memory:
    pays for more copies.
    """

    def __init__(
        self,
        hot_tables: HotTables,
        spill: SpillBuffer,
        access: TableAccess,
        in_order: Executor,
        written: Callable[[Keys], None],
        slot_rows: int,
        memory: Holding,
        limits: Limits,
    ) -> None:
        self._hot_tables, self._spill, self._access = hot_tables, spill, access
        self._in_order, self._written = in_order, written
        self._slot_rows, self._memory, self._limits = slot_rows, memory, limits
        self._snapshot: DirtySnapshot | None = None

    @property
    def under_way(self) -> bool:
        """Whether a snapshot is being written, so that copy_before_change() is needed."""
        return self._snapshot is not None

    # For a checkpoint (kvemb.durability.checkpointer).

    def begin(self, sharing: int = 1) -> DirtySnapshot:
        """Begin a snapshot of the dirty rows, kept until end(). REQUIRES: held(), and no other snapshot.

        sharing: the number of variables, this one included, that have yet to begin; they share the memory for copies.
        On return, all rows that wait to be spilled have been queued on the executor.
        """
        with self._access.state.keeping_rows():
            spilling = self._spill.start_write()
        self._snapshot = DirtySnapshot(
            self._hot_tables.tables[0].schema,
            self._hot_tables,
            self._access,
            self._in_order,
            self._written,
            self._room_for_copies(sharing),
            self._limits.snapshot_part_bytes,
            self._limits.table_file_bytes,
            spilling,
        )
        self._snapshot.begin()
        return self._snapshot

    def _room_for_copies(self, sharing: int) -> int:
        """Return how many rows a snapshot may copy: a slot of the variable's own, and what memory is enough for.

        The available memory is divided into equal parts: one for each variable that shares it, one for reads.
        """
        row_bytes = RowBlock.bytes_per_row(self._hot_tables.tables[0].schema)
        part = self._memory.available // (sharing + 1) // row_bytes
        wanted = max(0, min(self._limits.copied_rows - self._slot_rows, part))
        paid = wanted if self._memory.take(wanted * row_bytes) else 0
        return self._slot_rows + paid

    def end(self) -> None:
        """End the snapshot, if there is one. Takes the lock."""
        with self._access.held():
            if self._snapshot is not None:
                self._snapshot.end()
                self._snapshot = None
                self._memory.give_back(self._memory.held)

    # For calls that change or move rows. Without a snapshot they do nothing.

    def copy_before_change(self, keys: Keys, cells: Positions | None, owners: Owners) -> None:
        """Copy rows that may change now, if the snapshot needs them. cells: their cells, if known."""
        if self._snapshot is not None:
            self._snapshot.copy_before_change(keys, cells, owners)

    def copy_before_leaving(self, rows: RowBlock) -> None:
        """Copy rows that have left the hot tier, if the snapshot needs them, and clear their marks."""
        if self._snapshot is not None:
            self._snapshot.copy_before_leaving(rows)

    def before_write(self) -> None:
        """End the snapshot's file before other rows are written on this thread. Takes no lock."""
        if (snapshot := self._snapshot) is not None:
            snapshot.before_write()
