"""One of RocksDB's table files, mapped, once all that the kernels rely on is checked (FORMAT.md, "Table files").

A file that the kernels cannot read raises Unreadable: RocksDB reads its family then. A file that RocksDB could not have
written so raises Corruption. Immutable; the file stays readable after RocksDB has deleted it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.backends.rocks_log import number
from kvemb.backends.table_files import blocks, reading
from kvemb.errors import Corruption
from kvemb.kernels.compiling import kernel
from kvemb.kernels.xxh3 import MIN_BYTES, SECRET, checksum

# The end of a file: the kind of checksum, the places of metaindex and index, zeros, the format's version, the magic.
FOOTER_BYTES, MAGIC, FORMAT_VERSION, XXH3 = 53, 0x88E241B785F4CFF7, 5, 4
# A handle's parts are read from at most 5 bytes each (blocks.varint).
MOST_BYTES = 1 << 34
PROPERTIES, FILTER = b"rocksdb.properties", b"fullfilter.rocksdb.BuiltinBloomFilter"
# What the properties must be: texts and bytes as they are, ints as varints.
_EXPECTED: dict[bytes, bytes | int] = {
    b"comparator": b"leveldb.BytewiseComparator",
    b"compression": b"NoCompression",
    b"block.based.table.index.type": bytes(4),  # one index, for a binary search
    b"index.key.is.user.key": 1,
    b"index.value.is.delta.encoded": 1,
    b"num.range-deletions": 0,
    b"merge.operands": 0,
}
# The properties of a file of ours, beside its numbers: those, and what RocksDB asks of a file that it ingests.
WRITTEN: dict[bytes, bytes | int] = _EXPECTED | {
    b"block.based.table.prefix.filtering": b"0",
    b"block.based.table.whole.key.filtering": b"1",
    b"column.family.id": (1 << 31) - 1,  # any
    b"external_sst_file.global_seqno": bytes(8),
    b"external_sst_file.version": struct.pack("<I", 2),
    b"filter.policy": b"bloomfilter",
    b"format.version": FORMAT_VERSION,
}
# The last 5 bytes of a filter: "as of version 5", "of one cache line", the number of probes, and zeros.
FILTER_END = struct.Struct("<BBBH")
_secret = SECRET.ctypes.data


class Mappings:
    """How many files this process maps here, and how many at most. Linux lets it have 65,530 mappings.

    RocksDB maps each file, too. Threads may race: the limit is far from the system's.
    """

    count, most = 0, 20_000


mappings = Mappings()


class Unreadable(Exception):
    """A file that the kernels do not read. Its text says why."""


@kernel
def _checksum(data: int, nbytes: int, secret: int, sums: Any) -> Any:
    return checksum(data, nbytes, secret, sums)


class TableFile:
    """A file of a number of bytes, mapped. row: its columns, as reading.read_rows takes them.

    Raises Unreadable, Corruption, FileNotFoundError.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        if mappings.count >= mappings.most:
            raise Unreadable(f"this process maps {mappings.count:,} files already")
        if not FOOTER_BYTES < nbytes < MOST_BYTES:
            raise Unreadable(f"{path} has {nbytes:,} bytes")
        self.path = path
        self._map = _map(path, nbytes)
        mappings.count += 1
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._base = self._bytes.ctypes.data
        self._sums = np.empty(8, np.uint64)
        self.row = np.zeros(reading.COLUMNS, np.int64)
        self.row[reading.BASE], self.row[reading.BYTES] = self._base, nbytes
        try:
            self._read_parts()
        except Corruption:
            raise
        except (ValueError, IndexError, struct.error) as error:
            raise self._damaged(f"it cannot be parsed: {error}") from error

    def __del__(self) -> None:
        if hasattr(self, "_map"):
            mappings.count -= 1

    def _read_parts(self) -> None:
        footer = bytes(self._bytes[-FOOTER_BYTES:])
        version, magic = struct.unpack("<IQ", footer[-12:])
        if magic != MAGIC:
            raise self._damaged(f"it must end with the number {MAGIC:#x}, got {magic:#x}")
        if (version, footer[0]) != (FORMAT_VERSION, XXH3):
            raise Unreadable(f"{self.path} has the format version {version} and checksums of the kind {footer[0]}")
        metaindex, at = _handle(footer, 1)
        index, _ = _handle(footer, at)
        parts = {name: _handle(value, 0)[0] for name, value in _entries(self._block("metaindex", *metaindex))}
        if strange := parts.keys() - {PROPERTIES, FILTER}:
            raise Unreadable(f"{self.path} has the part {strange.pop().decode(errors='replace')}")
        if PROPERTIES not in parts:
            raise Unreadable(f"{self.path} has no properties")
        self._check_properties(dict(_entries(self._block("properties", *parts[PROPERTIES]))))
        if FILTER in parts:
            self._take_filter(*parts[FILTER])
        self._take_index(*index)

    def _check_properties(self, found: dict[bytes, bytes]) -> None:
        for name, expected in _EXPECTED.items():
            got: bytes | int | None = found.get(b"rocksdb." + name)
            if isinstance(expected, int) and isinstance(got, bytes):
                got = number(got, 0)[0]
            if got != expected:
                raise Unreadable(f"{self.path} has the property {name.decode()} {got!r}, not {expected!r}")

    def _take_filter(self, offset: int, nbytes: int) -> None:
        block = self._block("filter", offset, nbytes)
        kind, layout, probes, rest = FILTER_END.unpack(block[-FILTER_END.size :])
        lines, partial = divmod(nbytes - FILTER_END.size, 64)
        if (kind, layout, rest) != (255, 0, 0) or probes >= 32 or partial or not lines:
            raise Unreadable(f"{self.path} has a filter of another kind: {bytes(block[-FILTER_END.size :]).hex()}")
        self.row[reading.FILTER], self.row[reading.LINES] = self._base + offset, lines
        self.row[reading.PROBES] = probes

    def _take_index(self, offset: int, nbytes: int) -> None:
        block = self._block("index", offset, nbytes)
        (count,) = struct.unpack("<I", block[-4:])
        entry_bytes = nbytes - 4 - 4 * count
        if count < 1 or entry_bytes < 1:
            raise Unreadable(f"{self.path} has an index of {nbytes} bytes with {count} restart points")
        index = self._base + offset
        self._sample = np.empty(-(-count // blocks.SAMPLED), np.uint64)
        blocks.take_sample(index, entry_bytes, index + entry_bytes, count, self._sample)
        self.row[reading.INDEX], self.row[reading.INDEX_BYTES] = index, entry_bytes
        self.row[reading.RESTARTS], self.row[reading.RESTART_COUNT] = index + entry_bytes, count
        self.row[reading.SAMPLE] = self._sample.ctypes.data

    def _block(self, what: str, offset: int, nbytes: int) -> memoryview:
        """Return a block whose checksum is correct. It comes from the disk in one piece."""
        end = offset + nbytes + blocks.TRAILER_BYTES
        if nbytes < MIN_BYTES or end > len(self._bytes):
            raise self._damaged(f"its {what} is said to be at byte {offset:,}, and to have {nbytes:,} bytes")
        page = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, page, end - page)
        compression, stored = struct.unpack_from("<BI", self._map, offset + nbytes)
        if compression:
            raise Unreadable(f"{self.path} has a compressed {what}")
        if stored != _checksum(self._base + offset, nbytes, _secret, self._sums):
            raise self._damaged(f"the checksum of its {what}, at byte {offset:,}, does not match")
        return memoryview(self._map)[offset : offset + nbytes]

    def _damaged(self, what: str) -> Corruption:
        path = os.path.realpath(self.path)  # a database that is read in place is opened through links
        return Corruption(f"{path} is damaged: {what}; run kvemb verify --deep, and restore from a checkpoint")

    def damage(self, name: str, kind: int, offset: int, found: int, record_bytes: int) -> Corruption:
        """Return the error of what reading.read_rows found in this file, of a family."""
        if kind == reading.BAD_WIDTH:
            return Corruption(
                f"records of {name!r} must be {record_bytes} bytes each, got one with {found}; run kvemb verify --deep"
            )
        if kind == reading.BAD_HANDLE:
            return self._damaged(f"read {name!r}: its index names a block that is not in the file")
        wrong = "checksum does not match" if kind == reading.BAD_CHECKSUM else "entries cannot be parsed"
        return self._damaged(f"read {name!r}: of its block at byte {offset:,}, the {wrong}")


def _map(path: Path, nbytes: int) -> mmap.mmap:
    """Map a file. Lookups ask for the pages that they need, and need no others."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            mapped = mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ) if size == nbytes else None
    except FileNotFoundError:  # RocksDB has just deleted it
        raise
    except (OSError, ValueError) as error:  # there are too many files or mappings
        raise Unreadable(f"{path} cannot be mapped: {error}") from error
    if mapped is None:
        raise Corruption(
            f"{os.path.realpath(path)} is damaged: it has {size:,} bytes and should have {nbytes:,}; run kvemb verify "
            "--deep, and restore from a checkpoint"
        )
    mapped.madvise(mmap.MADV_RANDOM)
    return mapped


def footer(metaindex: bytes, index: bytes) -> bytes:
    """Return the end of a file, whose metaindex and index have these handles."""
    handles = bytes([XXH3]) + metaindex + index
    return handles.ljust(FOOTER_BYTES - 12, b"\0") + struct.pack("<IQ", FORMAT_VERSION, MAGIC)


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return offset and bytes of a block, and where they end."""
    offset, at = number(data, at)
    nbytes, at = number(data, at)
    return (offset, nbytes), at


def _entries(block: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block of names."""
    data = bytes(block)
    at, key = 0, b""
    end = len(data) - 4 - 4 * struct.unpack("<I", data[-4:])[0]
    while at < end:
        shared, at = number(data, at)
        rest, at = number(data, at)
        nbytes, at = number(data, at)
        key = key[:shared] + data[at : at + rest]
        yield key, data[at + rest : at + rest + nbytes]
        at += rest + nbytes
