"""Stores and files for the tests of kvemb.backends.table_files, with RocksDB or a dict as the oracle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
from schemas import schema_of

from kvemb.backends.rocks import RocksDatabase
from kvemb.backends.rocks_store import RocksStore
from kvemb.backends.table_files.reader import TableReader
from kvemb.backends.table_files.reading import UNKNOWN
from kvemb.contracts import Family
from kvemb.limits import DEFAULT, Limits
from kvemb.options import RocksDBCreator
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.schema import Schema

SCHEMA = schema_of(dim=5)
# Memtables of 64 KiB, the least that RocksDB takes.
TINY = RocksDBCreator(write_buffer_bytes=1 << 16)


def opened(path: Path, families: Any = None, *, limits: Limits = DEFAULT, **changes: Any) -> RocksDatabase:
    sizes: dict[str, Any] = {"cache_bytes": 1 << 20, "read_only": False, **changes}
    return RocksDatabase(
        path, {name: Family(creator) for name, creator in (families or {}).items()}, limits=limits, **sizes
    )


def rows_at(keys: Any, moment: int, schema: Schema = SCHEMA) -> RowBlock:
    """Rows whose bytes are made from their keys and a moment."""
    block = RowBlock(schema, len(keys))
    block.keys[:] = keys
    block.scores[:], block.flags[:], block.steps[:] = moment, DIRTY, block.keys ^ moment
    seeds = block.keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(moment)
    block.words[:] = seeds[:, None] + np.arange(schema.row_words, dtype=np.uint64)
    return block


def removals_of(keys: Any, schema: Schema = SCHEMA) -> RowBlock:
    block = RowBlock(schema, len(keys))
    block.keys[:], block.flags[:] = keys, DIRTY | REMOVED
    return block


class Modelled:
    """A cold store, and the moment at which each row was last written. Every read is compared, with RocksDB's, too."""

    def __init__(self, store: RocksStore, database: RocksDatabase) -> None:
        self.store, self.database = store, database
        self.moments: dict[int, int] = {}
        self.by_kernels = 0

    def write(self, keys: Any, moment: int) -> None:
        self.store.write(rows_at(keys, moment))
        self.moments.update(dict.fromkeys(np.asarray(keys).tolist(), moment))

    def remove(self, keys: Any) -> None:
        self.store.write(removals_of(keys))
        for key in np.asarray(keys).tolist():
            self.moments.pop(key, None)

    def ingest(self, folder: Path, keys: Any, gone: Any, moment: int) -> None:
        file = self.database.sorted_file(folder / f"{moment}.sst", SCHEMA, TINY)
        rows = RowBlock.joined([rows_at(keys, moment), removals_of(gone)], SCHEMA)
        file.append(rows.select(np.argsort(rows.keys)))
        file.finish()
        self.database.ingest("rows", file.path)
        for key in np.asarray(gone).tolist():
            self.moments.pop(key, None)
        self.moments.update(dict.fromkeys(np.asarray(keys).tolist(), moment))

    def clear(self) -> None:
        self.store.clear()
        self.moments.clear()

    def check(self, keys: Any) -> None:
        keys = np.asarray(keys, np.int64)
        rows, found = self.store.read(keys)
        of_rocksdb, also = read_by_rocksdb(self.store, keys)
        moments = np.array([self.moments.get(key, -1) for key in keys.tolist()])
        np.testing.assert_array_equal(also, moments >= 0)
        np.testing.assert_array_equal(found, moments >= 0)
        for column in ("keys", "scores", "steps", "flags", "words"):
            np.testing.assert_array_equal(getattr(rows, column), getattr(of_rocksdb, column))
        np.testing.assert_array_equal(rows.scores, moments[moments >= 0])
        self.by_kernels += reads_by_kernels(self.store)


def read_by_rocksdb(store: RocksStore, keys: Any) -> Any:
    """What a read returns if RocksDB reads the files."""
    tables, store._tables = store._tables, None
    try:
        return store.read(keys)
    finally:
        store._tables = tables


def reads_by_kernels(store: RocksStore) -> bool:
    """Whether the last read of a store was made by kernels."""
    version = store._tables._version if store._tables is not None else None
    return version is not None and version.readable


def listing_of(*levels: list[tuple[Path, str, str]]) -> str:
    """What RocksDB would list for files, level by level, each with its first and last key in hexadecimal."""
    lines = []
    for level, files in enumerate(levels):
        lines.append(f"--- level {level} --- version# 1 ---")
        for path, first, last in files:
            bounds = f"['{first}' seq:1, type:1 .. '{last}' seq:9, type:0]"
            lines.append(f" {int(path.stem)}:{path.stat().st_size}[1 .. 9]{bounds}(0)")
    return "\n".join(lines) + "\n\n"


def reader_of(folder: Path, listing: str) -> Any:
    """The method read() of a reader of files that no database has open."""
    family = Mock(property_int_value=lambda name: 0, property_value=lambda name: listing)
    return partial(TableReader("rows", folder).read, family)


def read(reader: Any, keys: Any, spread: Any) -> tuple[RowBlock, Any]:
    """What a reader finds: the rows, and the states of the keys."""
    rows, states = RowBlock(SCHEMA, len(keys)), np.full(len(keys), UNKNOWN, np.uint8)
    rows.keys[:] = keys
    assert reader(rows, states, spread)
    return rows, states


def whole(work: Any, count: int) -> None:
    """Do all work of a read at once."""
    work(0, count)
