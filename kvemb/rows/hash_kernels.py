"""The kernels of hashing. Loaded at first use, because numba takes half a second.

The hash is MurmurHash3's 64-bit finaliser (Appleby, public domain), a bijection, so no two keys share all 64 bits.
Kernels here release the GIL and access only their arguments; callers hold the locks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.compiling import inlined, kernel

EMPTY = -1


@inlined
def mix(key: int) -> Any:
    """Return the 64-bit hash of a key, as uint64."""
    h = np.uint64(key)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h


@kernel
def unique(keys: Any, cells: Any, first: Any, last: Any, counts: Any, inverse: Any, following: Any) -> int:
    """Fill the arrays of kvemb.rows.hashing.Unique, and return how many distinct keys there are."""
    cells[:] = EMPTY
    following[:] = EMPTY
    mask = np.uint64(len(cells) - 1)
    found = 0
    for i in range(len(keys)):
        key = keys[i]
        at = mix(key) & mask
        while True:
            entry = cells[at]
            if entry < 0:
                cells[at] = found
                first[found] = i
                last[found] = i
                counts[found] = 1
                inverse[i] = found
                found += 1
                break
            if keys[first[entry]] == key:
                following[last[entry]] = i
                last[entry] = i
                counts[entry] += 1
                inverse[i] = entry
                break
            at = (at + np.uint64(1)) & mask
    return found


@kernel
def group_rows(first: Any, following: Any, rows: Any, bounds: Any) -> None:
    """Fill the arrays of kvemb.rows.hashing.Sums.grouped; bounds[0] is 0."""
    count = 0
    for key in range(len(first)):
        at = first[key]
        while at >= 0:
            rows[count] = at
            count += 1
            at = following[at]
        bounds[key + 1] = count


@kernel
def index_put(cells: Any, keys: Any, start: int, stop: int) -> None:
    """Record the positions of keys[start:stop] in the cells of a kvemb.rows.hashing.KeyIndex."""
    mask = np.uint64(len(cells) - 1)
    for i in range(start, stop):
        at = mix(keys[i]) & mask
        while cells[at] >= 0 and keys[cells[at]] != keys[i]:
            at = (at + np.uint64(1)) & mask
        cells[at] = i


@kernel
def index_put_at(cells: Any, keys: Any, positions: Any) -> None:
    """Record positions, of keys[positions], in the cells of a kvemb.rows.hashing.KeyIndex."""
    mask = np.uint64(len(cells) - 1)
    for i in range(len(positions)):
        position = positions[i]
        at = mix(keys[position]) & mask
        while cells[at] >= 0 and keys[cells[at]] != keys[position]:
            at = (at + np.uint64(1)) & mask
        cells[at] = position


@kernel
def index_find(cells: Any, keys: Any, valid: Any, wanted: Any, positions: Any) -> None:
    """Set positions[i] to the position of wanted[i], or EMPTY. valid: which positions count; if it is empty, all do."""
    mask = np.uint64(len(cells) - 1)
    for i in range(len(wanted)):
        positions[i] = EMPTY
        at = mix(wanted[i]) & mask
        while cells[at] >= 0:
            if keys[cells[at]] == wanted[i]:
                if len(valid) == 0 or valid[cells[at]]:
                    positions[i] = cells[at]
                break
            at = (at + np.uint64(1)) & mask
