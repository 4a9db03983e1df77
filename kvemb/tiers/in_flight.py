"""Rows in flight: what a lookup found outside of the hot tables, kept for the update that follows.

A training step looks rows up and then updates them. If a lookup made its rows hot at once, later rows of the batch
would push them out again, and the update would read them a second time. So they wait here. The update takes them and
offers them to the hot tables once; the next other call offers what is left. The variable's lock guards everything.
"""

from __future__ import annotations

import numpy as np

from kvemb.contracts import Mask
from kvemb.memory.lease import Lease
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import KeyIndex, Keys
from kvemb.rows.row_copies import copy_rows
from kvemb.tiers.located import Located

# Bytes per key of the index, at most.
_INDEX_BYTES = 32


class RowsInFlight:
    """The rows of one lookup that were not hot, with its recorded uses, and the keys that it found to have no row.

    No row here is hot. One here counts, if the spill buffer or the cold store has one of its key, too. lease: pays for
    the memory. expected: whether an update is expected to follow a lookup, as in training; a lookup whose rows no
    update took is a sign that none does.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease, self.expected, self.by_score = lease, True, False
        self._found: Located | None = None
        self._index: KeyIndex | None = None
        self._left: Mask = np.empty(0, np.bool_)
        self._bytes = 0

    def keep(self, found: Located, by_score: bool, *, if_paid: bool) -> Located | None:
        """Keep what a lookup found; return what is not kept, or None. if_paid: keep what the lease pays for.

        by_score: whether its rows become hot only if they outscore hot rows. REQUIRES: nothing is in flight.
        """
        count = self._pay(found.rows)
        kept = np.arange(len(found.rows)) < (count if if_paid else len(found.rows))
        self._found, self._index, self.by_score = found.only(kept), None, by_score
        self._left = np.ones(len(self._found.rows), np.bool_)
        return None if kept.all() else found.only(~kept)

    def _pay(self, rows: RowBlock) -> int:
        """Lease memory for the rows, or for a part of them; return for how many."""
        row_bytes = RowBlock.bytes_per_row(rows.schema) + _INDEX_BYTES
        for quarters in (4, 3, 2, 1):
            count = len(rows) * quarters // 4
            if self._lease.take(count * row_bytes):
                self._bytes = count * row_bytes
                return count
        return 0

    def read(self, into: RowBlock, known: Mask, exists: Mask) -> None:
        """Copy the rows of into.keys that are here to their positions, and set known and exists there."""
        if self._found is None:
            return
        rows = self._found.rows
        positions = self._indexed(rows.keys).find(rows.keys, into.keys)
        here = (positions >= 0) & self._left[positions]
        to, source = here.nonzero()[0], positions[here]
        copy_rows(rows, source, into, to)
        known[to], exists[to] = True, self._found.exists[source]

    def _indexed(self, keys: Keys) -> KeyIndex:
        if self._index is None:  # made when an update comes
            self._index = KeyIndex(len(keys))
            self._index.put(keys, 0, len(keys))
        return self._index

    def discard(self, keys: Keys) -> None:
        """Forget the rows of keys, which are hot or in the spill buffer by now."""
        if self._found is not None:
            positions = self._indexed(self._found.rows.keys).find(self._found.rows.keys, keys)
            self._left[positions[positions >= 0]] = False
            if not self._left.any():
                self._end()

    def land(self) -> Located | None:
        """Return the rows that are left, and forget them. If no update took any, none is expected from now on."""
        if (found := self._found) is None:
            return None
        self.expected = not self._left.all()
        left = self._left & found.exists
        self._end()
        return found.only(left) if left.any() else None

    def clear(self) -> None:
        """Forget everything, because all rows are gone or are elsewhere now."""
        self._end()

    def _end(self) -> None:
        self._found = self._index = None
        if self._bytes:
            self._lease.give_back(self._bytes)
            self._bytes = 0
