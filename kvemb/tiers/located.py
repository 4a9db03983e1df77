"""Where the rows of some keys are: the answer of kvemb.tiers.locate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvemb.contracts import Mask
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Positions
from kvemb.tiers.partition import Owners, owners_at


@dataclass
class Located:
    """The locations of the rows of some distinct keys, valid while the lock is held.

    owners: each key's table (kvemb.tiers.partition). cells (n,): each key's hot cell, or -1. cold (m,): the positions
    in keys of the keys that are not hot. rows (m): the rows of those keys, in that order. exists (m,): which of these
    rows exist; in the others only the key is set. known (m,): for which of them rows and exists are final; after
    locate(), for all.
    """

    keys: Keys
    owners: Owners
    cells: Positions
    cold: Positions
    rows: RowBlock
    exists: Mask
    known: Mask

    @property
    def present(self) -> Mask:
        """Which keys have a row, hot or not (n,)."""
        present = self.cells >= 0
        present[self.cold] = self.exists
        return present

    @property
    def hot(self) -> Positions:
        """The positions in keys of those that are hot."""
        return (self.cells >= 0).nonzero()[0]

    def owners_of(self, positions: Positions) -> Owners:
        """Return the tables of the keys at these positions."""
        return owners_at(self.owners, positions)

    def cold_alone(self, chosen: Mask) -> Located:
        """Return the chosen ones of the keys that are not hot, and no hot keys. chosen (m,): which of them."""
        rows, count = self.rows, int(np.count_nonzero(chosen))
        if count == len(self.keys):  # but not with the caller's array of keys, which may change
            return Located(rows.keys, self.owners, self.cells, self.cold, rows, self.exists, self.known)
        if count < len(rows):
            rows = rows.select(chosen)
        owners, at = self.owners_of(self.cold[chosen]), np.arange(count)
        cells = np.full(count, -1, np.int64)
        return Located(rows.keys, owners, cells, at, rows, self.exists[chosen], self.known[chosen])

    def with_cold(self, chosen: Mask) -> Located:
        """Return the same with only the chosen ones of the rows that are not hot; hot keys stay. chosen (m,)."""
        if np.count_nonzero(chosen) == len(chosen):
            return self
        cold, rows = self.cold[chosen], self.rows.select(chosen)
        return Located(self.keys, self.owners, self.cells, cold, rows, self.exists[chosen], self.known[chosen])
