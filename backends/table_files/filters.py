"""RocksDB's Bloom filter ("FastLocalBloom", its util/bloom_impl.h), whose bits of a key are all in one cache line.

The hash is XXPH3 of the key's 8 bytes, the preview of XXH3 that RocksDB keeps for filters (its util/hash.cc).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.addresses import load_8, reversed_bytes
from kvemb.kernels.compiling import compiled

_U = np.uint64


@compiled
def hashed_key(ordered: Any) -> Any:
    """Return the hash of an ordered key, whose bytes are big-endian."""
    word = reversed_bytes(ordered) ^ _U(0xBE4BA423396CFEB8)
    mixed = _U(8) + (word ^ (word >> _U(51))) * _U(0x9E3779B1)
    mixed = (mixed ^ (mixed >> _U(47))) * _U(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ (mixed >> _U(37))) * _U(0x165667B19E3779F9)
    return mixed ^ (mixed >> _U(32))


@compiled
def line_of(hashed: Any, filter_at: int, lines: int) -> Any:
    """Return the address of the 64 bytes that have all bits of a key. lines: how many the filter has."""
    return filter_at + np.int64(((hashed & _U(0xFFFFFFFF)) * _U(lines)) >> _U(32)) * 64


@compiled
def may_have(hashed: Any, line: int, probes: int) -> bool:
    """Return whether all bits of a key are set; about one key in a hundred that a file lacks passes, too."""
    bits = hashed >> _U(32)
    for _ in range(probes):
        bit = np.int64(bits >> _U(23))
        if not (load_8(line + (bit >> 3)) >> (bit & 7)) & 1:
            return False
        bits = (bits * _U(0x9E3779B9)) & _U(0xFFFFFFFF)
    return True
