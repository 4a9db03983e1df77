"""Maps keys to shards: a key's bucket never changes, and a shard has a range of buckets. Thread-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvemb.rows.hashing import Keys, Positions, Sums, Unique

BUCKETS = 4096  # on disk; do not change
# How many keys the batches have whose groupings are kept, in all, and the fewest of one: grouping a shorter one again
# takes about as long as finding it.
MAX_KEPT_KEYS, MIN_KEPT_KEYS = 524_288, 128


@cache
def _kernels() -> Any:
    from kvemb.cluster import router_kernels

    return router_kernels


def buckets_of(keys: Keys) -> npt.NDArray[np.uint16]:
    """Return the bucket of each key (n,)."""
    found = np.empty(len(keys), np.uint16)
    _kernels().buckets(keys, found)
    return found


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
        self.repeated, self.inverse = distinct.repeated, distinct.inverse
        if len(self.parts) < 2:
            self.keys, self.counts, self.sums = distinct.keys, distinct.counts, distinct.sums
            return
        position, self.keys, self.counts, first = np.empty((4, len(order)), np.int64)
        of_each = distinct.keys, distinct.counts, distinct.sums.first
        _kernels().reorder(order, *of_each, position, self.keys, self.counts, first)
        self.sums = Sums(first, distinct.sums.following)
        self.inverse = position[distinct.inverse]

    def uses(self, counts: Positions | None) -> Positions:
        """Return the sum of counts (n,) over each key's occurrences (m,). None: each occurrence counts one."""
        if counts is None:
            return self.counts
        return np.bincount(self.inverse, counts, len(self.keys)).astype(np.int64)


class Router:
    """The shards of a table. firsts: first_buckets(shards). Thread-safe."""

    def __init__(self, shards: int) -> None:
        self.shards, self.firsts = shards, first_buckets(shards)
        self._shard_of = np.repeat(np.arange(shards, dtype=np.uint16), np.diff(self.firsts))
        self._kept: OrderedDict[tuple[int, ...], tuple[Keys, GroupedKeys]] = OrderedDict()  # by a few of their keys
        self._kept_keys, self._lock = 0, threading.Lock()

    def shards_of(self, keys: Keys) -> npt.NDArray[np.uint16]:
        """Return the shard of each key (n,)."""
        return self._shard_of[buckets_of(keys)]

    def split(self, keys: Keys) -> SplitBatch:
        """Divide a batch of keys (n,)."""
        count = len(keys)
        if self.shards == 1:
            return SplitBatch(np.arange(count), [(0, slice(0, count))] if count else [])
        order, ends = np.empty(count, np.int64), np.empty(self.shards, np.int64)
        _kernels().divide(keys, self._shard_of, np.empty(count, np.uint16), order, ends)
        parts, begin = [], 0
        for shard, end in enumerate(ends.tolist()):
            if end > begin:
                parts.append((shard, slice(begin, end)))
            begin = end
        return SplitBatch(order, parts)

    def group(self, keys: Keys) -> GroupedKeys:
        """Divide the distinct keys of a batch (n,). Keeps the latest: a batch is often looked up, then trained."""
        count = len(keys)
        if not MIN_KEPT_KEYS <= count <= MAX_KEPT_KEYS:
            return GroupedKeys(keys, self.split)
        few = (count, *keys[:: count // 8].tolist())
        kept = self._kept.get(few)
        if kept is not None and (kept[0] == keys).all():
            return kept[1]
        keys = keys.copy()  # the caller may change them, and the grouping may refer to this array
        grouped = GroupedKeys(keys, self.split)
        with self._lock:
            if (same := self._kept.pop(few, None)) is not None:
                self._kept_keys -= len(same[0])
            self._kept[few] = keys, grouped
            self._kept_keys += count
            while self._kept_keys > MAX_KEPT_KEYS:
                _, (old, _) = self._kept.popitem(last=False)
                self._kept_keys -= len(old)
        return grouped
