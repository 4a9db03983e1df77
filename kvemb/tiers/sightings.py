"""Counting the sightings of missing keys in bounded memory: a count-min sketch with counters of one byte.

Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch" (J. Algorithms 55, 2005), with
conservative update (Estan and Varghese, SIGCOMM 2002) and halving (Einziger, Friedman and Manes, "TinyLFU", 2017).
The variable's lock guards it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask
from kvemb.restrict import Admission
from kvemb.rows.hashing import Keys, Positions

ROWS = 4
_SEEDS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)


class Sightings:
    """Counts sightings of missing keys, and decides which keys have enough to be admitted."""

    def __init__(self, admission: Admission) -> None:
        self._wanted = admission.sightings
        self._counters = np.zeros((ROWS, admission.memory_bytes // ROWS), np.uint8)
        self._counted = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all counters."""
        return self._counters.nbytes

    def sight(self, keys: Keys, counts: Positions) -> Mask:
        """Add counts (m,) sightings of distinct keys (m,); return which keys have enough (m,) bool."""
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

    def _places(self, keys: Keys) -> npt.NDArray[np.int64]:
        """Return each key's counter in every row (ROWS, m): MurmurHash3's finaliser of the key and a seed."""
        h = keys.view(np.uint64)[None, :] ^ _SEEDS[:, None]
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
        h ^= h >> np.uint64(33)
        return (h % np.uint64(self._counters.shape[1])).astype(np.int64)
