"""RocksDB's table files: writing them in key order for ingestion, and splitting a table by their sizes and ranges."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.rocks_forks import keep_in_forks
from kvemb.backends.rocks_scan import translated
from kvemb.contracts import SortedFile
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import LAST_KEY, Ordered, encode_keys, encode_records
from kvemb.rows.schema import Schema

# One table file in RocksDB's listing: its size, and its first and last key in hexadecimal.
_FILE_LISTED = re.compile(r"\d+:(\d+)\[[^]]*\]\['([0-9A-F]*)' seq:\d+, type:\d+ \.\. '([0-9A-F]*)' seq")

# The part of a file, 1 / END, in which its filter and its index are; and the bytes that are read at a time.
END, READ_BYTES = 8, 1 << 17


class RocksSortedFile(SortedFile):
    """A table file that is written row by row, and that any database can ingest whole.

    batch_rows: rows written at once. rocksdict holds the GIL while it writes, so this also bounds how long others wait.
    """

    def __init__(self, path: Path, schema: Schema, writer: Any, batch_rows: int) -> None:
        self.path, self._schema, self._writer, self._batch_rows = path, schema, writer, batch_rows
        self.rows, self.first, self.last = 0, b"", b""
        keep_in_forks(self)
        with translated(f"write {path}"):
            self._writer.open(str(path))

    def append(self, rows: RowBlock) -> None:
        with translated(f"write {self.path}"):
            for at in range(0, len(rows), self._batch_rows):
                part = rows.part(at, min(at + self._batch_rows, len(rows)))
                keys, records = encode_keys(part.keys, self._schema), encode_records(part)
                self.first, self.last = self.first or keys[0], keys[-1]
                removed = part.flags & REMOVED != 0
                if not removed.any():
                    deque(map(self._writer.__setitem__, keys, records), maxlen=0)
                    continue
                for key, record, gone in zip(keys, records, removed.tolist(), strict=True):
                    if gone:
                        del self._writer[key]
                    else:
                        self._writer[key] = record
        self.rows += len(rows)

    def append_at(self, rows: RowBlock, keys: Ordered, places: npt.NDArray[np.int64]) -> None:
        """Do what append does with the rows at places of a block. keys: theirs."""
        self.append(rows.select(places))

    def close(self) -> None:
        """End the file, finished or not."""
        self._writer = None

    def finish(self) -> None:
        with translated(f"write {self.path}"):
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size:  # a small file is still in RocksDB's buffer
                    os.fsync(file.fileno())  # RocksDB also does it, but with the GIL held
            self._writer.finish()
            self._read_end()

    def _read_end(self) -> None:
        """Bring its filter and index into the page cache, which RocksDB has just told the kernel to drop.

        Whoever ingests the file reads them, with the GIL held.
        """
        with open(self.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            os.pread(file.fileno(), READ_BYTES, 0)
            for at in range(size - size // END, size, READ_BYTES):
                os.pread(file.fileno(), READ_BYTES, at)


def splits(family: Any, parts: int) -> list[int]:
    """See contracts.ColdStore. Assumes that the rows of a file are evenly distributed over its range of keys."""
    listed = str(family.property_value("rocksdb.sstables") or "")
    # A range deletion may begin with no bytes, and end above the last key.
    files = [
        (int(size), *(min(int(end or "0", 16), LAST_KEY) for end in ends))
        for size, *ends in _FILE_LISTED.findall(listed)
    ]
    if not files or parts == 1:
        return []
    base = min(first for _, first, _ in files)  # floats represent distances from it more exactly than keys
    files = [(size, first - base, last - base) for size, first, last in files]
    bounds = np.unique(np.array([end for _, *ends in files for end in ends], np.float64))
    bytes_below = np.zeros(len(bounds))
    for size, first, last in files:
        bytes_below += size * np.clip((bounds - first) / max(1, last - first), 0.0, 1.0)
    wanted = bytes_below[-1] * np.arange(1, parts) / parts
    found = {base + int(distance) for distance in np.interp(wanted, bytes_below, bounds)}
    return sorted(split for split in found if 0 < split <= LAST_KEY)
