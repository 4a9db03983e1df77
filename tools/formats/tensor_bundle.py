"""TensorFlow's tensor bundles: the tensors of a checkpoint by name, memory-mapped, without TensorFlow.

PREFIX.index is a table of LevelDB's format (its block format and footer, uncompressed) from a tensor's name to where
its bytes are in PREFIX.data-SHARD-of-SHARDS. The messages, BundleHeaderProto and BundleEntryProto, are in TensorFlow's
tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.kernels.crc32c import checksum
from kvemb.tools.failures import BadInput
from kvemb.tools.numbers import bfloat16

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
STRING = 7
# TensorFlow's DataType: those that keys and values have.
_DTYPES = {1: "float32", 2: "float64", 3: "int32", 6: "int8", 9: "int64", 14: "bfloat16", 19: "float16", 23: "uint64"}


@dataclass(frozen=True)
class Entry:
    """Where a tensor is. dtype: TensorFlow's number. sliced: it was saved in parts, as partitioned variables are."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


class Bundle:
    """The tensors of a checkpoint. entries: by name, in the order of names.

    prefix: what the names of its files begin with. Raises BadInput if a file is missing or damaged.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix: Path = prefix
        self._index = Path(f"{prefix}.index")
        if not self._index.is_file():
            raise BadInput(f"{self._index} is missing")
        try:
            found = dict(_table(self._index.read_bytes()))
            header = _fields(found.pop(b""))
            if _number(header, 2):
                raise ValueError("its numbers are big-endian")
            self._shards = _number(header, 1, 1)
            self.entries: dict[str, Entry] = {name.decode(): _entry(found[name]) for name in found}
        except (ValueError, IndexError, KeyError, struct.error, OverflowError) as error:
            raise BadInput(
                f"{self._index} cannot be read as the index of a checkpoint of TensorFlow: {error}"
            ) from error
        if missing := [path.name for path in map(self._shard, range(self._shards)) if not path.is_file()]:
            raise BadInput(
                f"{prefix.parent} lacks {len(missing)} of {self._shards} data files: {', '.join(missing[:4])}"
            )

    def array(self, name: str) -> Any:
        """Return a tensor of numbers as a memory-mapped array, after its checksum was compared. Raises BadInput."""
        entry = self.entries[name]
        if entry.sliced or entry.dtype not in _DTYPES:
            what = "in slices" if entry.sliced else f"with TensorFlow's dtype {entry.dtype}"
            raise BadInput(f"{name!r} of {self.prefix} is saved {what}, which kvemb does not read")
        dtype = bfloat16() if _DTYPES[entry.dtype] == "bfloat16" else np.dtype(_DTYPES[entry.dtype])
        if entry.size != math.prod(entry.shape) * dtype.itemsize:
            raise BadInput(
                f"{name!r} of {self.prefix} has {entry.size:,} bytes, which are not {entry.shape} of {dtype}"
            )
        data = self._bytes(entry, name)
        if checksum(data) != entry.checksum:
            raise BadInput(f"{name!r} in {self._shard(entry.shard)} is damaged: its checksum differs; get it again")
        return data.view(dtype).reshape(entry.shape)

    def strings(self, name: str) -> list[bytes]:
        """Return the elements of a tensor of strings. Raises BadInput."""
        entry = self.entries[name]
        data, at, sizes = self._bytes(entry, name).tobytes(), 0, []
        try:
            for _ in range(math.prod(entry.shape)):
                size, at = _varint(data, at)
                sizes.append(size)
        except IndexError as error:
            raise BadInput(f"{name!r} of {self.prefix} is damaged") from error
        at += 4  # the checksum of the sizes
        found = []
        for size in sizes:
            found.append(data[at : at + size])
            at += size
        if at != len(data):
            raise BadInput(f"{name!r} of {self.prefix} is damaged: its strings do not fill it")
        return found

    def _bytes(self, entry: Entry, name: str) -> Any:
        path = self._shard(entry.shard)
        if entry.shard >= self._shards or entry.offset + entry.size > path.stat().st_size:
            raise BadInput(f"{path} is too short for {name!r}; get it again")
        if not entry.size:
            return np.empty(0, np.uint8)
        return np.memmap(path, np.uint8, "r", entry.offset, (entry.size,))

    def _shard(self, number: int) -> Path:
        return Path(f"{self.prefix}.data-{number:05}-of-{self._shards:05}")


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table of LevelDB's format."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack_from("<Q", footer, 40)[0] != _MAGIC:
        raise ValueError("it does not end as one")
    about, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    if list(_block(data, about)):
        raise ValueError("it has a filter")
    for _, value in _block(data, index):
        yield from _block(data, _handle(value, 0)[0])


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return the offset and the size that a handle has, and where it ends."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(data: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; keys lack what they share with the one before."""
    begin, size = handle
    block, trailer = data[begin : begin + size], data[begin + size : begin + size + _TRAILER_BYTES]
    if len(trailer) < _TRAILER_BYTES or trailer[0]:
        raise ValueError("a block is cut short or compressed")
    whole = np.frombuffer(block + trailer[:1], np.uint8)
    if checksum(whole) != struct.unpack_from("<I", trailer, 1)[0]:
        raise ValueError("the checksum of a block differs")
    end, at, key = size - 4 - 4 * struct.unpack_from("<I", block, size - 4)[0], 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def message(data: bytes) -> list[tuple[int, Any]]:
    """Return the fields of a message of Protocol Buffers: numbers, and ints or bytes. Raises ValueError, IndexError."""
    return [(number, value) for number, values in _fields(data).items() for value in values]


def _fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            raise ValueError(f"a message has a field of the unknown kind {kind}")
        found.setdefault(number, []).append(value)
    return found


def _number(fields: dict[int, list[Any]], number: int, default: int = 0) -> int:
    return int(fields.get(number, [default])[-1])


def _entry(data: bytes) -> Entry:
    fields = _fields(data)
    shape = _fields(fields.get(2, [b""])[-1])
    sizes = tuple(_number(_fields(each), 1) for each in shape.get(2, []))
    shard, offset, size, checksum = (_number(fields, number) for number in (3, 4, 5, 6))
    return Entry(_number(fields, 1), sizes, shard, offset, size, checksum, sliced=7 in fields)
