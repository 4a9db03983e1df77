"""CRC-32C (Castagnoli), masked as LevelDB's formats store it, because what is checked may contain checksums itself.

Eight bytes at a time (Kounavis and Berry 2005, "slicing by 8"). Pure functions; the kernels release the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.compiling import inlined, kernel

_POLYNOMIAL = np.uint32(0x82F63B78)  # reflected


def _tables() -> Any:
    """Return the CRCs of each byte that is followed by 0 to 7 zeros, uint32 (8, 256)."""
    tables = np.empty((8, 256), np.uint32)
    rest = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        rest = (rest >> np.uint32(1)) ^ np.where(rest & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    tables[0] = rest
    for zeros in range(1, 8):
        tables[zeros] = rest[tables[zeros - 1] & np.uint32(255)] ^ (tables[zeros - 1] >> np.uint32(8))
    return tables


TABLES = _tables()


@inlined
def masked_crc(data: Any, tables: Any, begin: int, end: int) -> Any:
    """Return the checksum of data[begin:end], bytes, as a uint32. tables: TABLES."""
    low = np.uint32(255)
    rest = np.uint32(0xFFFFFFFF)
    at = begin
    while at + 8 <= end:
        rest ^= (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        rest = np.uint32(
            tables[7, rest & low]
            ^ tables[6, (rest >> np.uint32(8)) & low]
            ^ tables[5, (rest >> np.uint32(16)) & low]
            ^ tables[4, rest >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8
    while at < end:
        rest = np.uint32(tables[0, (rest ^ np.uint32(data[at])) & low] ^ (rest >> np.uint32(8)))
        at += 1
    rest ^= np.uint32(0xFFFFFFFF)
    return np.uint32(((rest >> np.uint32(15)) | (rest << np.uint32(17))) + np.uint32(0xA282EAD8))


@kernel
def _whole(data: Any, tables: Any) -> Any:
    return masked_crc(data, tables, 0, len(data))


def checksum(data: Any) -> int:
    """Return the masked checksum of bytes, a uint8 array (n,)."""
    return int(_whole(data, TABLES))
