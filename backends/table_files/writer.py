"""A table file that is written whole by kernels, for RocksDB to ingest (FORMAT.md, "Table files").

RocksDB's own writers take 2 us a row, most of it with the GIL, because each key and each record is an object.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.rocks_log import numbers
from kvemb.backends.rocks_scan import translated
from kvemb.backends.table_files import table_file, writing
from kvemb.backends.table_files.blocks import TRAILER_BYTES
from kvemb.contracts import SortedFile
from kvemb.kernels.xxh3 import SECRET
from kvemb.options import RocksDBCreator
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import KEY_BYTES, Ordered, order_keys, record_dtype
from kvemb.rows.schema import Schema

# Bytes that are written to the file at a time.
BUFFER_BYTES = 1 << 20
_FIRST_ROWS, _FIRST_BLOCKS = 1 << 12, 1 << 10
# The most bits a key for 1 to 10 probes of its bits in the filter, as RocksDB chooses (its util/bloom_impl.h).
_BITS = (2.08, 3.58, 5.1, 6.64, 8.3, 10.07, 11.72, 14.001, 16.05, 18.3)
_secret = SECRET.ctypes.data


def probes_of(bits: float) -> int:
    """Return how many bits of the filter each key sets, for so many bits a key."""
    return 1 + sum(bits > most for most in _BITS)


class TableWriter(SortedFile):
    """Writes rows in key order to a new file, uncompressed. Not thread-safe. Raises ColdStoreError."""

    def __init__(self, path: Path, schema: Schema, creator: RocksDBCreator) -> None:
        self.path, self._schema = path, schema
        self.rows, self.first, self.last = 0, b"", b""
        self._block_bytes, self._bits = creator.block_bytes, creator.bloom_bits
        self._record_bytes = record_dtype(schema).itemsize
        largest = max(self._block_bytes, self._record_bytes + writing.ENTRY_BYTES + writing.END_BYTES + 8)
        self._out = np.empty(max(BUFFER_BYTES, 2 * largest), np.uint8)
        self._restarts = np.empty(self._block_bytes // writing.RESTART_KEYS + 2, np.int64)
        self._index = np.empty(_FIRST_BLOCKS * writing.INDEX_ENTRY_BYTES, np.uint8)
        self._entries = np.empty(_FIRST_BLOCKS, np.int64)
        self._hashes = np.empty(_FIRST_ROWS, np.uint64)
        self._state, self._sums = np.zeros(writing.STATE, np.int64), np.empty(8, np.uint64)
        with translated(f"write {path}"):
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115 -- finish() closes it

    def append(self, rows: RowBlock) -> None:
        self.append_at(rows, order_keys(rows.keys, self._schema), np.arange(len(rows)))

    def append_at(self, rows: RowBlock, keys: Ordered, places: npt.NDArray[np.int64]) -> None:
        """Do what append does with the rows at places of a block. keys: theirs."""
        if len(keys) == 0:
            return
        self.rows += len(keys)
        if self.rows > len(self._hashes):
            self._hashes = _grown(self._hashes, max(self.rows, 2 * len(self._hashes)))
        self.first = self.first or int(keys[0]).to_bytes(KEY_BYTES, "big")
        self.last = int(keys[-1]).to_bytes(KEY_BYTES, "big")
        done = 0
        while True:
            done = writing.add_rows(
                keys, places, done, *rows.columns[1:], self._record_bytes, self._block_bytes, self._state, self._out,
                self._restarts, self._index, self._entries, self._hashes, _secret, self._sums,
            )  # fmt: skip
            if done == len(keys):
                return
            self._write_blocks()
            if 2 * self._state[writing.BLOCKS] > len(self._entries):
                self._index = _grown(self._index, 2 * len(self._index))
                self._entries = _grown(self._entries, 2 * len(self._entries))

    def _write_blocks(self) -> None:
        """Write the buffer's full blocks to the file."""
        block, used = self._state[writing.BLOCK], self._state[writing.USED]
        self._write(self._out[:block])
        self._out[: used - block] = self._out[block:used].copy()
        self._state[writing.AT] += block
        self._state[writing.BLOCK], self._state[writing.USED] = 0, used - block

    def _write(self, data: Any) -> None:
        """Write bytes, or an array of uint8."""
        with translated(f"write {self.path}"):
            left = memoryview(data)
            while len(left):
                left = left[self._file.write(left) :]

    def finish(self) -> None:
        writing.end_block(self._state, self._out, self._restarts, self._index, self._entries, _secret, self._sums)
        self._write_blocks()
        self._at = tail = int(self._state[writing.AT])
        parts, filter_bytes = {}, 0
        if self._bits:
            block = self._filter()
            parts[table_file.FILTER], filter_bytes = self._put(block), len(block)
        blocks = int(self._state[writing.BLOCKS])
        index = [self._index[: self._state[writing.INDEX_USED]], self._entries[:blocks].astype("<u4").view(np.uint8)]
        index_block = np.concatenate([*index, np.frombuffer(struct.pack("<I", blocks), np.uint8)])
        index_at = self._put(index_block)
        removals = int(self._state[writing.REMOVALS])
        counted = {
            b"data.size": tail, b"deleted.keys": removals, b"filter.size": filter_bytes,
            b"index.size": len(index_block) + TRAILER_BYTES, b"num.data.blocks": blocks, b"num.entries": self.rows,
            b"num.filter_entries": self.rows, b"raw.key.size": 2 * KEY_BYTES * self.rows,
            b"raw.value.size": self._record_bytes * (self.rows - removals), b"tail.start.offset": tail,
        }  # fmt: skip
        parts[table_file.PROPERTIES] = self._put(_named({
            b"rocksdb." + name: numbers(value) if isinstance(value, int) else value
            for name, value in (table_file.WRITTEN | counted).items()
        }))  # fmt: skip
        handles = (self._put(_named(parts)), index_at)
        self._write(table_file.footer(*handles))
        with translated(f"write {self.path}"), self._file:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """End the file, finished or not."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # it was made
            self.close()

    def _filter(self) -> npt.NDArray[np.uint8]:
        lines, probes = max(1, int(-(-self.rows * self._bits // 512))), probes_of(self._bits)
        block = np.zeros(64 * lines + table_file.FILTER_END.size, np.uint8)
        writing.fill_filter(self._hashes, self.rows, block, lines, probes)
        end: Any = block
        table_file.FILTER_END.pack_into(end, 64 * lines, 255, 0, probes, 0)
        return block

    def _put(self, block: npt.NDArray[np.uint8]) -> bytes:
        """Write a block; return its handle."""
        handle = numbers(self._at, len(block))
        checksum = writing.checksum_of(block.ctypes.data, len(block), _secret, self._sums)
        self._write(block)
        self._write(struct.pack("<BI", 0, checksum))
        self._at += len(block) + TRAILER_BYTES
        return handle


def _grown(array: Any, length: int) -> Any:
    """Return a longer copy of an array."""
    grown = np.empty(length, array.dtype)
    grown[: len(array)] = array
    return grown


def _named(values: dict[bytes, bytes]) -> npt.NDArray[np.uint8]:
    """Return a block of names and values, with one restart point."""
    entries = b"".join(numbers(0, len(name), len(value)) + name + value for name, value in sorted(values.items()))
    return np.frombuffer(entries + struct.pack("<II", 0, 1), np.uint8)
