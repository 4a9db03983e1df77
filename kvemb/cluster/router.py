"""Maps keys to shards: a key's bucket never changes, and a shard has a range of buckets. Pure functions and values.

The bucket is part of the format (FORMAT.md, "A cluster"). It is computed with another hash than the hot table's: if all
keys of a shard had some bits of that hash in common, the hot table's buckets would fill unevenly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvemb.rows.hashing import Keys, Positions, Unique

BUCKETS = 4096  # on disk; do not change
# How many groupings are kept, and the fewest and most keys of their batches: comparing pays off for long batches.
MAX_KEPT, MIN_KEPT_KEYS, MAX_KEPT_KEYS = 8, 256, 65_536
_SHIFT = np.uint64(64 - 12)


def buckets_of(keys: Keys) -> npt.NDArray[np.uint16]:
    """Return the bucket of each key (n,): the high 12 bits of SplitMix64's hash (Steele, Lea, Flood, OOPSLA 2014)."""
    h = keys.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return (h >> _SHIFT).astype(np.uint16)


def first_buckets(shards: int) -> list[int]:
    """Return the first bucket of each shard, then BUCKETS. The ranges' sizes differ by at most one."""
    return [shard * BUCKETS // shards for shard in range(shards + 1)]


class SplitBatch(NamedTuple):
    """A batch divided by shard. order (n,): positions in the batch, grouped by shard, within a shard in the batch's
    order.

    parts: for each shard with any, its number and where its positions are in `order`.
    """

    order: Positions
    parts: list[tuple[int, slice]]

    def positions(self) -> Iterator[tuple[int, Positions]]:
        """Yield each shard with the positions of its part in the batch."""
        for shard, where in self.parts:
            yield shard, self.order[where]


class GroupedKeys:
    """The distinct keys of a batch, grouped by shard, within a shard in order of first occurrence.

    keys (m,), inverse (n,), counts (m,), sums, repeated: as in kvemb.rows.hashing.Unique. parts: for each shard with
    any, its number and where its keys are in `keys`.
    """

    def __init__(self, batch: Keys, split: Callable[[Keys], SplitBatch]) -> None:
        distinct = Unique(batch)
        order, self.parts = split(distinct.keys)
        self.keys, self.counts, self.sums = distinct.keys, distinct.counts, distinct.sums
        self.inverse, self.repeated = distinct.inverse, distinct.repeated
        if len(self.parts) > 1:
            self.keys, self.counts, self.sums = self.keys[order], self.counts[order], self.sums.of(order)
            position = np.empty(len(order), np.int64)
            position[order] = np.arange(len(order))
            self.inverse = position[self.inverse]

    def uses(self, counts: Positions | None) -> Positions:
        """Return the sum of counts (n,) over each key's occurrences (m,). None: each occurrence counts one."""
        if counts is None:
            return self.counts
        return np.bincount(self.inverse, counts, len(self.keys)).astype(np.int64)


class Router:
    """The shards of a table. firsts: first_buckets(shards). Thread-safe."""

    def __init__(self, shards: int) -> None:
        self._latest: deque[tuple[Keys, GroupedKeys]] = deque(maxlen=MAX_KEPT)
        self.shards, self.firsts = shards, first_buckets(shards)
        self._shard_of = np.repeat(np.arange(shards, dtype=np.uint16), np.diff(self.firsts))

    def shards_of(self, keys: Keys) -> npt.NDArray[np.uint16]:
        """Return the shard of each key (n,)."""
        return self._shard_of[buckets_of(keys)]

    def split(self, keys: Keys) -> SplitBatch:
        """Divide a batch of keys (n,)."""
        if self.shards == 1:
            return SplitBatch(np.arange(len(keys)), [(0, slice(0, len(keys)))] if len(keys) else [])
        shards = self.shards_of(keys)
        order = np.argsort(shards, kind="stable")  # a radix sort, as the numbers have 16 bits
        ends = np.cumsum(np.bincount(shards, minlength=self.shards)).tolist()
        begins = [0, *ends[:-1]]
        bounds = zip(range(self.shards), begins, ends, strict=True)
        return SplitBatch(order, [(shard, slice(begin, end)) for shard, begin, end in bounds if end > begin])

    def group(self, keys: Keys) -> GroupedKeys:
        """Divide the distinct keys of a batch (n,). Keeps the latest: a batch is often looked up, then trained."""
        for batch, grouped in list(self._latest):
            if len(batch) == len(keys) and _may_be_equal(batch, keys) and np.array_equal(batch, keys):
                return grouped
        keep = MIN_KEPT_KEYS <= len(keys) <= MAX_KEPT_KEYS
        if keep:
            keys = keys.copy()  # the caller may change them, and the grouping may refer to this array
        grouped = GroupedKeys(keys, self.split)
        if keep:
            self._latest.appendleft((keys, grouped))
        return grouped


def _may_be_equal(batch: Keys, keys: Keys) -> bool:
    """Compare a few keys, which is enough for most batches that differ."""
    return bool((batch[:: len(batch) // 8 + 1] == keys[:: len(keys) // 8 + 1]).all())
