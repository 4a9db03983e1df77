"""Keys, popularity and values for benchmarks: functions of a seed, computed when needed, not held for the whole table.

Ids are spread over all 64 bits, as hashed ids are. Popularity ranks are shuffled over them by the same mixing, so that
popular keys are neither adjacent on disk nor first in the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def ids_of(ranks: Ids) -> Ids:
    """Return a distinct, random-looking 64-bit id for each rank (splitmix64's finaliser, a bijection; Steele 2014)."""
    x = ranks.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def batches_of_ids(rows: int, batch: int) -> Iterator[Ids]:
    """Yield the ids of ranks 0 .. rows - 1, a batch at a time, most popular first."""
    for start in range(0, rows, batch):
        yield ids_of(np.arange(start, min(start + batch, rows), dtype=np.int64))


def values_of(ids: Ids, dim: int) -> Floats:
    """Return rows (n, dim) that differ by id and by column, in [-0.5, 0.5)."""
    mixed = (ids.view(np.uint64)[:, None] >> np.uint64(11)) * (2 * np.arange(dim, dtype=np.uint64) + np.uint64(1))
    return ((mixed & np.uint64(0xFFFFFF)).astype(np.float32) / np.float32(1 << 24)) - np.float32(0.5)


class Zipf:
    """Ranks 0 .. n - 1 with probability proportional to (rank + 1) ** -exponent.

    Rejection-inversion (Hörmann and Derflinger, 1996): exact, and without a table of n probabilities, whose memory
    would distort the measurement.
    """

    def __init__(self, n: int, exponent: float, seed: int) -> None:
        self._n, self._s, self._rng = n, exponent, np.random.default_rng(seed)
        self._low = float(self._integral(np.array(1.5)) - 1.0)
        self._high = float(self._integral(np.array(n + 0.5)))
        self._accept = float(2.0 - self._inverse(self._integral(np.array(2.5)) - 2.0**-exponent))

    def sample(self, count: int) -> Ids:
        """Return count ranks."""
        out = np.empty(0, np.int64)
        while len(out) < count:
            u = self._rng.uniform(self._low, self._high, count + 64)
            x = self._inverse(u)
            k = np.clip(np.rint(x), 1, self._n)
            keep = (k - x <= self._accept) | (u >= self._integral(k + 0.5) - k**-self._s)
            out = np.concatenate([out, k[keep].astype(np.int64) - 1])
        return out[:count]

    def mass_of_top(self, top: int) -> float:
        """Return the share of accesses to the `top` most popular ranks: the best hit rate of a fixed set."""
        weights = np.arange(1, self._n + 1, dtype=np.float64) ** -self._s
        return float(weights[:top].sum() / weights.sum())

    def _integral(self, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the integral of t ** -s from 1 to x."""
        return np.log(x) if self._s == 1.0 else (x ** (1.0 - self._s) - 1.0) / (1.0 - self._s)

    def _inverse(self, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.exp(y) if self._s == 1.0 else (y * (1.0 - self._s) + 1.0) ** (1.0 / (1.0 - self._s))
