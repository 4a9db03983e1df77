"""Counting the sightings of missing keys in bounded memory: a count-min sketch with counters of one byte.

Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch" (J. Algorithms 55, 2005), with
conservative update (Estan and Varghese, SIGCOMM 2002) and halving (Einziger, Friedman and Manes, "TinyLFU", 2017).
The variable's lock guards it, except saved() and is_saved. FORMAT.md, "Counter file", says which counters a key has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask
from kvemb.restrict import Admission
from kvemb.rows.hashing import Keys, Positions

ROWS = 4  # on disk, as are the seeds
_SEEDS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)


@dataclass(frozen=True)
class Counters:
    """The counters of one moment. values: (ROWS, n). counted: sightings since they were halved."""

    values: npt.NDArray[np.uint8]
    counted: int

    def joined(self, other: Counters) -> Counters:
        """Return counters for the keys of both, which have no key in common. REQUIRES: as many counters.

        A counter is an upper bound, and the result has the higher ones: no key has fewer sightings than in its own.
        """
        return Counters(np.maximum(self.values, other.values), self.counted + other.counted)


class AdmissionCounters:
    """Counts sightings of missing keys, and decides which keys have enough to be admitted."""

    def __init__(self, admission: Admission) -> None:
        self._wanted = admission.sightings
        self._counters = np.zeros((ROWS, admission.memory_bytes // ROWS), np.uint8)
        self._counted = 0
        self._changes = self._frozen_at = self._saved = 0
        self._is_frozen = False
        self._copy: npt.NDArray[np.uint8] | None = None
        self._kept: Counters | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all counters."""
        return self._counters.nbytes

    @property
    def is_saved(self) -> bool:
        """Whether the counters are those of the current durable point. Also without the variable's lock."""
        return self._changes == self._saved

    def count(self, keys: Keys, counts: Positions) -> Mask:
        """Add counts (m,) sightings of distinct keys (m,); return which keys have enough (m,) bool."""
        self._keep()
        self._changes += 1
        if self._counted >= self._counters.size:
            self._counters >>= 1
            self._counted = 0
        self._counted += int(counts.sum())
        places = self._places(keys)
        now = np.minimum(self._counters[np.arange(ROWS)[:, None], places].min(axis=0) + counts, 255).astype(np.uint8)
        for row, at in zip(self._counters, places, strict=True):
            np.maximum.at(row, at, now)  # only counters below the new count are raised
        enough: Mask = now >= self._wanted
        return enough

    def forget(self, keys: Keys) -> None:
        """Count distinct keys (m,) from 0 again, and with them other keys that share their lowest counter.

        A key has as many sightings as the lowest of its counters, so setting that one to 0 is enough.
        """
        places = self._places(keys)
        values = self._counters[np.arange(ROWS)[:, None], places]
        counted = np.flatnonzero(values.min(axis=0))
        if len(counted):
            self._keep()
            self._changes += 1
            lowest = values.argmin(axis=0)[counted]
            self._counters[lowest, places[lowest, counted]] = 0

    def take(self, counters: Counters | None, *, saved: bool = False) -> None:
        """Continue from these counters; None: from 0. saved: whether they are those of the current durable point."""
        self._keep()
        self._counters[:] = 0 if counters is None else counters.values
        self._counted = 0 if counters is None else counters.counted
        self._changes += 1
        if saved:
            self._saved = self._changes

    def freeze(self) -> None:
        """Keep the counters of this moment for frozen(). That copies them, or the next change, whichever is first."""
        self._frozen_at, self._kept = self._changes, None
        self._is_frozen = not self.is_saved

    def frozen(self) -> Counters | None:
        """Return the counters as freeze() found them, None if they are those of the current durable point.

        They are valid until the next freeze().
        """
        self._keep()
        return self._kept

    def _keep(self) -> None:
        if self._is_frozen:
            if self._copy is None:
                self._copy = np.empty_like(self._counters)
            self._copy[:] = self._counters
            self._kept, self._is_frozen = Counters(self._copy, self._counted), False

    def saved(self) -> None:
        """Record that the counters of the last freeze() are those of the current durable point."""
        self._saved = self._frozen_at

    def _places(self, keys: Keys) -> npt.NDArray[np.int64]:
        """Return each key's counter in every row (ROWS, m): MurmurHash3's finaliser of the key and a seed."""
        h = keys.view(np.uint64)[None, :] ^ _SEEDS[:, None]
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
        h ^= h >> np.uint64(33)
        return (h % np.uint64(self._counters.shape[1])).astype(np.int64)
