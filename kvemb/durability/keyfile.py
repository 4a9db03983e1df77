"""Key files: sorted sets of keys on disk, for the rows that were hot and the rows that changed.

A key is the uint64 of codec.order_keys. A file has frames of at most 8,192 keys, each with a checksum: the differences
of neighbours, split into byte planes and deflated, one to three bytes for each key of a dense set (FORMAT.md, "Key
file"). Memory is bounded by one frame for each file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.rows.codec import Ordered

FRAME_KEYS = 8192
_MAGIC, VERSION = b"kvembkeys\x00", 1  # on disk
_HEAD = struct.Struct(">10sH")
_FRAME = struct.Struct("<IIQ")  # keys, payload bytes, first key
_CHECKSUM = struct.Struct("<I")
_MAX_PAYLOAD = 9 * FRAME_KEYS


def write_keys(path: Path, batches: Iterable[Ordered], *, frame_keys: int = FRAME_KEYS) -> int:
    """Write a new key file, without a sync; returns the number of keys. Raises OSError.

    batches: (n,) each; keys are distinct and ascending over all batches. frame_keys: of a frame, at most FRAME_KEYS.
    """
    count = 0
    with open(path, "xb") as file:
        file.write(_HEAD.pack(_MAGIC, VERSION))
        for batch in batches:
            for at in range(0, len(batch), frame_keys):
                keys = batch[at : at + frame_keys]
                planes = np.diff(keys).astype("<u8").view(np.uint8).reshape(-1, 8).T
                _write_frame(file, len(keys), int(keys[0]), deflated(planes.tobytes()))
                count += len(keys)
        _write_frame(file, 0, count, b"")
    return count


def deflated(data: bytes | memoryview) -> bytes:
    """Deflate bytes in which only runs of equal bytes repeat. Searching for runs alone takes a third of the time."""
    deflater = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return deflater.compress(data) + deflater.flush()


def inflated(payload: bytes | memoryview, nbytes: int) -> bytes:
    """Return the nbytes bytes that a payload inflates to. Raises zlib.error, ValueError."""
    inflating = zlib.decompressobj()
    # At most one byte beyond the expected size, so that a small payload cannot inflate to fill the memory.
    data = inflating.decompress(payload, nbytes + 1)
    if len(data) != nbytes or not inflating.eof or inflating.unused_data:
        raise ValueError(f"it must inflate to {nbytes:,} bytes, got {len(data):,} or a part of them")
    return data


def _write_frame(file: IO[bytes], count: int, first: int, payload: bytes) -> None:
    head = _FRAME.pack(count, len(payload), first)
    file.write(head + payload + _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))))


def read_keys(path: Path) -> Iterator[Ordered]:
    """Yield the keys of a file, frame by frame. Raises Corruption, naming the file; OSError."""
    count, last = 0, -1
    with open(path, "rb") as file:
        begins = file.read(_HEAD.size)
        if begins[: len(_MAGIC)] != _MAGIC or len(begins) < _HEAD.size:
            raise _damaged(path, "does not begin with the head of a key file")
        if (version := _HEAD.unpack(begins)[1]) != VERSION:
            raise UnsupportedFormat(
                f"{path} has format {version}, this kvemb reads format {VERSION}; use the kvemb that wrote it"
            )
        while True:
            head = file.read(_FRAME.size)
            if len(head) < _FRAME.size:
                raise _damaged(path, "ends early")
            number, nbytes, first = _FRAME.unpack(head)
            if number > FRAME_KEYS or nbytes > (_MAX_PAYLOAD if number else 0):
                raise _damaged(path, f"has a frame of {number:,} keys in {nbytes:,} bytes")
            rest = file.read(nbytes + _CHECKSUM.size)
            payload = rest[:nbytes]
            if rest[nbytes:] != _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))):
                raise _damaged(path, "has a frame whose checksum is wrong")
            if number == 0:
                if first != count or file.read(1):
                    raise _damaged(path, f"has {count:,} keys and should have {first:,}")
                return
            try:
                keys = _keys(payload, number, first)
            except (zlib.error, ValueError) as error:
                raise _damaged(path, f"has a frame of {number:,} keys with an invalid payload: {error}") from error
            if first <= last or (keys[1:] <= keys[:-1]).any():
                raise _damaged(path, "has keys that are not in ascending order")
            count, last = count + number, int(keys[-1])
            yield keys


def _keys(payload: bytes, number: int, first: int) -> Ordered:
    """Return the keys of a frame. Raises zlib.error, ValueError."""
    planes = np.frombuffer(inflated(payload, 8 * (number - 1)), np.uint8).reshape(8, number - 1)
    keys = np.empty(number, np.uint64)
    keys[0] = first
    keys[1:] = np.ascontiguousarray(planes.T).view("<u8").reshape(-1)
    return np.cumsum(keys, dtype=np.uint64)


def merged(streams: Iterable[Iterator[Ordered]]) -> Iterator[Ordered]:
    """Yield the union of ascending streams, ascending and each key once. Holds one batch of each stream in memory."""
    return map(distinct, _together(streams))


def distinct(keys: Ordered) -> Ordered:
    """Return the distinct keys, ascending; the same array if it is so already."""
    if not (keys[1:] > keys[:-1]).all():
        keys = np.sort(keys)
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
    return keys


def odd(streams: Iterable[Iterator[Ordered]]) -> Iterator[Ordered]:
    """Yield the keys that an odd number of streams have, as merged does: for two streams, the symmetric difference."""
    for keys in _together(streams):
        distinct, counts = np.unique(keys, return_counts=True)
        yield distinct[counts % 2 == 1]


def _together(streams: Iterable[Iterator[Ordered]]) -> Iterator[Ordered]:
    """Yield the keys of all streams in ascending batches; within a batch keys are unordered, duplicates included."""
    heads: list[tuple[Ordered, Iterator[Ordered]]] = []
    for stream in streams:
        _refill(heads, stream)
    while heads:
        limit = min(head[-1] for head, _ in heads)
        parts, left = [], []
        ended = []
        for head, stream in heads:
            stop = int(np.searchsorted(head, limit, "right"))
            parts.append(head[:stop])
            if stop < len(head):
                left.append((head[stop:], stream))
            else:
                ended.append(stream)
        heads = left
        for stream in ended:
            _refill(heads, stream)
        yield np.concatenate(parts)


def _refill(heads: list[tuple[Ordered, Iterator[Ordered]]], stream: Iterator[Ordered]) -> None:
    for batch in stream:
        if len(batch):
            heads.append((batch, stream))
            return


def _damaged(path: Path, how: str) -> Corruption:
    return Corruption(f"{path} is damaged: it {how}; restore from another checkpoint")
