"""The kernels of WrittenKeys: a hash table of keys and counts, in which a key is never removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.addresses import prefetch
from kvemb.kernels.compiling import compiled, kernel
from kvemb.rows.hash_kernels import mix

_AHEAD, _CELL_BYTES = 16, 16
_U = np.uint64


@compiled
def _put(cells: Any, key: Any, count: Any) -> int:
    """Give a key a count, at least as large as its last one; return 1 if it took a cell."""
    mask = _U(len(cells) - 1)
    at = np.int64(mix(key) & mask)
    while cells[at, 1] != _U(0):
        if cells[at, 0] == key:
            cells[at, 1] = count
            return 0
        at = (at + 1) & np.int64(mask)
    cells[at, 0], cells[at, 1] = key, count
    return 1


@kernel
def put(cells: Any, keys: Any, count: int) -> int:
    """Give all keys a count; return how many cells that took. REQUIRES: there is room."""
    took = 0
    for i in range(len(keys)):
        took += _put(cells, keys[i], _U(count))
    return took


@kernel
def put_later(cells: Any, old: Any, floor: int) -> int:
    """Put the keys of other cells whose count is above a floor; return how many."""
    took = 0
    for i in range(len(old)):
        if np.int64(old[i, 1]) > floor and old[i, 1] != _U(0):
            took += _put(cells, old[i, 0], old[i, 1])
    return took


@kernel
def mark_later(cells: Any, keys: Any, floor: int, states: Any, mark: int) -> None:
    """Give the keys whose count is above a floor a state."""
    mask = _U(len(cells) - 1)
    base = cells.ctypes.data
    for t in range(len(keys) + _AHEAD):
        if t < len(keys):
            prefetch(base + _CELL_BYTES * np.int64(mix(keys[t]) & mask))
        if t >= _AHEAD:
            key = keys[t - _AHEAD]
            at = np.int64(mix(key) & mask)
            while cells[at, 1] != _U(0):
                if cells[at, 0] == key:
                    if np.int64(cells[at, 1]) > floor:
                        states[t - _AHEAD] = mark
                    break
                at = (at + 1) & np.int64(mask)
