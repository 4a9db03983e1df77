"""The kernels of kvemb.cluster.router. Loaded at first use, because numba takes half a second.

The bucket of a key is part of the format (FORMAT.md, "A cluster"). It is computed with another hash than the hot
table's: if all keys of a shard had some bits of that hash in common, the hot table's buckets would fill unevenly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.compiling import inlined, kernel


@inlined
def _bucket(key: int) -> Any:
    """Return the high 12 bits of SplitMix64's hash (Steele, Lea, Flood, OOPSLA 2014)."""
    h = np.uint64(key) + np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h >> np.uint64(64 - 12)


@kernel
def buckets(keys: Any, out: Any) -> None:
    """Set out (n,) to the bucket of each key (n,)."""
    for i in range(len(keys)):
        out[i] = _bucket(keys[i])


@kernel
def divide(keys: Any, shard_of: Any, shards: Any, order: Any, ends: Any) -> None:
    """Fill order (n,) with the positions of keys (n,), shard by shard, and ends (shards,): where each shard's end.

    shard_of: of each bucket. shards (n,): memory to work in.
    """
    ends[:] = 0
    for i in range(len(keys)):
        shard = shard_of[_bucket(keys[i])]
        shards[i] = shard
        ends[shard] += 1
    total = 0
    for shard in range(len(ends)):
        count = ends[shard]
        ends[shard] = total
        total += count
    for i in range(len(keys)):
        shard = shards[i]
        order[ends[shard]] = i
        ends[shard] += 1


@kernel
def reorder(
    order: Any, keys: Any, counts: Any, first: Any, position: Any, new_keys: Any, new_counts: Any, new_first: Any
) -> None:
    """Bring what kvemb.rows.hashing.Unique has of each key into an order; position (n,): where each key then is."""
    for to in range(len(order)):
        at = order[to]
        position[at] = to
        new_keys[to] = keys[at]
        new_counts[to] = counts[at]
        new_first[to] = first[at]
