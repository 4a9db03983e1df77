"""The records of RocksDB's MANIFEST (its db/log_format.h): blocks of 32 KiB, which a record may span, and varints.

The kernel releases the GIL. Pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvemb.errors import UnsupportedFormat
from kvemb.kernels.compiling import kernel
from kvemb.kernels.crc32c import TABLES, checksum, masked_crc

BLOCK_BYTES = 32 << 10
_HEAD = struct.Struct("<IHB")  # checksum, payload bytes, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4  # on disk; do not renumber


@kernel
def _first_damaged(data: Any, tables: Any) -> int:
    """Return the byte of the first part that is cut off or has another checksum, -1 if there is none."""
    at = 0
    while at < len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < 7:
            at += left
            continue
        if at + 7 > len(data):
            return at
        end = at + 7 + int(data[at + 4]) + 256 * int(data[at + 5])
        if end > at + left or end > len(data):
            return at
        known = np.uint32(0)
        for byte in range(4):
            known |= np.uint32(data[at + byte]) << np.uint32(8 * byte)
        if known != masked_crc(data, tables, at + 6, end):
            return at
        at = end
    return -1


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log. Raises ValueError, naming the byte, if one is damaged; UnsupportedFormat."""
    if (damaged := _first_damaged(np.frombuffer(data, np.uint8), TABLES)) >= 0:
        raise ValueError(f"its record at byte {damaged:,} is cut off, or has another checksum")
    at, parts = 0, list[bytes]()
    while at < len(data):
        if (left := BLOCK_BYTES - at % BLOCK_BYTES) < _HEAD.size:
            at += left
            continue
        _, nbytes, kind = _HEAD.unpack_from(data, at)
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            raise UnsupportedFormat(f"has a record of the kind {kind}, which this kvemb does not know")
        if (kind in (_MIDDLE, _LAST)) != bool(parts):
            raise ValueError(f"its record at byte {at:,} does not continue the one before")
        parts.append(data[at + _HEAD.size : at + _HEAD.size + nbytes])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
            parts.clear()
        at += _HEAD.size + nbytes
    if parts:
        raise ValueError("its last record is cut off")


def framed(record: bytes, at: int) -> bytes:
    """Return the bytes of a record that is appended to a log of `at` bytes."""
    out, rest, kind = bytearray(), record, _WHOLE
    while True:
        left = BLOCK_BYTES - (at + len(out)) % BLOCK_BYTES
        if left < _HEAD.size:
            out += bytes(left)
            continue
        part, rest = rest[: left - _HEAD.size], rest[left - _HEAD.size :]
        kind = (_FIRST if rest else _WHOLE) if kind == _WHOLE else (_MIDDLE if rest else _LAST)
        kind_and_part = bytes([kind]) + part
        out += _HEAD.pack(checksum(np.frombuffer(kind_and_part, np.uint8)), len(part), kind) + part
        if not rest:
            return bytes(out)


def number(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a byte, and where it ends. Raises IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes that follow their length, and where they end. Raises IndexError, ValueError."""
    nbytes, at = number(data, at)
    if at + nbytes > len(data):
        raise ValueError("an edit is cut off")
    return data[at : at + nbytes], at + nbytes


def numbers(*values: int) -> bytes:
    """Return numbers as varints, one after another."""
    out = bytearray()
    for value in values:
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)
