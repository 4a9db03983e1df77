"""Rows in flight: what a lookup found outside of the hot tables, kept for the update that follows.

A training step looks rows up and then updates them. If a lookup made its rows hot at once, later rows of the batch
would push them out again, and the update would read them a second time. So they wait here. The update takes them, and
offers them to the hot tables once. Any other call first lands what is left: it offers these rows to the hot tables
(kvemb.tiers.access).

The variable's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from kvemb.contracts import Mask
from kvemb.memory.staging import Holding
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import KeyIndex, Keys, Positions
from kvemb.rows.row_copies import copy_rows
from kvemb.store_state import Poisoning, StoreState
from kvemb.tiers.located import Located

# Bytes per row beside its block: at most four cells of the index, the number of its table, and two flags.
_BESIDE_BYTES = 16 + 8 + 2


class RowsInFlight:
    """The rows of one lookup that were not hot, with its uses, and the keys that it found to have no row.

    No key here is hot. What is here is newer than what memtables and the cold store have of its key: the values
    are the same, but the uses are recorded here only. left: how many keys are here. expected: whether an update is
    expected to follow a lookup, as in training; a lookup that no update followed is a sign that none does. followed:
    whether an update followed this one, even if it took none of its keys. moves: how often rows came or left.

    memory: pays for them. promote: offers rows to the hot tables; by_score: whether only those that outscore hot
    rows become hot.
    """

    def __init__(self, memory: Holding, state: StoreState, promote: Callable[[Located, bool], None]) -> None:
        self.left, self.expected, self.followed, self.moves = 0, True, False, 0
        self._memory, self._state, self._promote = memory, state, promote
        self._found: Located | None = None
        self._by_score = False
        self._here: Mask = np.empty(0, np.bool_)
        self._index: KeyIndex | None = None

    @property
    def awaited(self) -> bool:
        """Whether an update is expected to take what is here."""
        return self.expected and not self._by_score

    def keep(self, found: Located, by_score: bool, *, briefly: bool) -> Located | None:
        """Keep what a lookup found, as far as memory pays for it; return what is not kept, or None.

        by_score: how the rows land. briefly: keep all of it in any case, because another thread lands it as soon as
        the lookup has ended. REQUIRES: nothing is in flight.
        """
        self.moves += 1
        paid, total = self._pay(found.rows), len(found.rows)
        count = total if briefly else paid
        if count == 0:
            return found
        try:
            kept = np.arange(total) < count
            self._found, self._by_score = found.cold_alone(kept), by_score
            self._here = np.ones(count, np.bool_)
            left = found.with_cold(~kept) if count < total else None
        except BaseException:
            self.clear()  # what was paid is given back
            raise
        self.left, self.followed = count, False
        return left

    def _pay(self, rows: RowBlock) -> int:
        """Take memory for the rows, or for a part of them; return for how many."""
        row_bytes = RowBlock.bytes_per_row(rows.schema) + _BESIDE_BYTES
        for quarters in (4, 3, 2, 1):
            count = len(rows) * quarters // 4
            if self._memory.take(count * row_bytes):
                return count
        return 0

    def has(self, keys: Keys) -> Mask:
        """Return which of distinct keys are here (n,)."""
        if self._found is None:
            return np.zeros(len(keys), np.bool_)
        return self._positions(keys) >= 0

    def read(self, into: RowBlock, known: Mask, exists: Mask) -> None:
        """Copy the rows of into.keys that are here to their positions; set known and exists at these positions."""
        if self._found is None:
            return
        positions = self._positions(into.keys)
        to = np.flatnonzero(positions >= 0)
        source = positions[to]
        copy_rows(self._found.rows, source, into, to)
        known[to], exists[to] = True, self._found.exists[source]

    def discard(self, keys: Keys) -> None:
        """Forget the rows of keys, because newer ones are hot or in a memtable by now."""
        if self._found is not None:
            self.moves += 1
            positions = self._positions(keys)
            self._here[positions[positions >= 0]] = False
            self.left = int(np.count_nonzero(self._here))
            if not self.left:
                self.clear()

    def _positions(self, keys: Keys) -> Positions:
        """Return the position of each key here, -1 if it is not here. REQUIRES: something is in flight."""
        assert self._found is not None
        rows = self._found.rows
        if len(keys) == len(rows) and np.array_equal(keys, rows.keys):  # an update of what was looked up
            return np.where(self._here, np.arange(len(rows)), -1)
        if self._index is None:  # made when the first call looks for rows here
            index = KeyIndex(len(rows))
            index.put(rows.keys, 0, len(rows))
            self._index = index  # complete, or else rows here would be passed over
        return self._index.find(rows.keys, keys, self._here)

    def land(self, *, learn: bool = True) -> None:
        """Promote the rows that are left. If no update followed the lookup, none is expected from now on.

        learn: False while no update can have followed. Raises nothing: a failure poisons the store. In a poisoned store
        they stay, so that recover() loses no use.
        """
        if self._found is None or self._state.cause is not None:
            return
        with suppress(Exception), Poisoning(self._state):
            found, by_score = self._found.with_cold(self._here & self._found.exists), self._by_score
            if learn:
                self.expected = self.followed or self.left < len(self._here)
            self.clear()
            self._promote(found, by_score)

    def clear(self) -> None:
        """Forget everything, because all rows are gone or are elsewhere now."""
        self.moves += 1
        self.left, self._found, self._index = 0, None, None
        self._memory.give_back(self._memory.held)
