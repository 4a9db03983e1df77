"""Every cold database there is in kvemb is opened here, each use with what it needs: the one in use, one read in place,
one that is salvaged, one that rows are sorted in.

A database belongs to whoever opened it, who closes it. path: RocksDB's directory. cache_bytes: of the block cache;
write_buffer_bytes: of all memtables. All raise ColdStoreError, Corruption, BackendUnavailable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kvemb import registry
from kvemb.contracts import ColdDatabase, ColdStore
from kvemb.durability.manifest import Manifest
from kvemb.options import MemoryCreator, RocksDBCreator
from kvemb.rows.schema import Schema

# Of databases that no store's budget pays for.
REPAIR_BYTES = {"cache_bytes": 8 << 20, "write_buffer_bytes": 64 << 20}
SORTING_BYTES = {"cache_bytes": 1 << 20, "write_buffer_bytes": 1 << 20}


def to_write(path: Path, described: Manifest, *, cache_bytes: int, write_buffer_bytes: int) -> ColdDatabase:
    """Open a database for reading and writing, made empty where there is none."""
    return _rocks(path, described, cache_bytes=cache_bytes, write_buffer_bytes=write_buffer_bytes, read_only=False)


def to_read(
    path: Path, described: Manifest, *, cache_bytes: int = 8 << 20, write_buffer_bytes: int = 1 << 20
) -> ColdDatabase:
    """Open a database that stays as it is."""
    return _rocks(path, described, cache_bytes=cache_bytes, write_buffer_bytes=write_buffer_bytes, read_only=True)


def to_salvage(path: Path, described: Manifest) -> ColdDatabase:
    """Open a database that may be damaged, or lack files, for ColdStore.rescue. It stays as it is."""
    return _rocks(path, described, **REPAIR_BYTES, read_only=True, salvaging=True)


def to_repair_into(path: Path) -> ColdDatabase:
    """Make an empty database for what is salvaged."""
    return _rocks(path, None, **REPAIR_BYTES, read_only=False)


def to_sort_in(path: Path) -> ColdDatabase:
    """Make an empty database that takes finished files, to be read once: it never merges them."""
    return _rocks(path, None, **SORTING_BYTES, read_only=False, compacting=False)


def families(path: Path) -> list[str]:
    """Return the names of the cold stores in a database. Opens nothing."""
    names: list[str] = registry.cold_backend(RocksDBCreator.backend).families(path)
    return names


def amend(path: Path, *, drop: Collection[str] = (), files: Mapping[str, list[Path]] | None = None) -> None:
    """Finish a copy of a database that nobody has open: see contracts.ColdDatabase.amend."""
    registry.cold_backend(RocksDBCreator.backend).amend(path, list(drop), dict(files or {}))


def in_memory(schema: Schema) -> ColdStore:
    """Make a cold store that ends with the process."""
    rows: ColdStore = registry.cold_backend(MemoryCreator.backend)(schema)
    return rows


def creators_of(described: Manifest) -> dict[str, RocksDBCreator]:
    """Return how the cold store of each variable was made. Raises UnsupportedFormat."""
    return {name: RocksDBCreator.from_json(entry.creator) for name, entry in described.variables.items()}


def _rocks(path: Path, described: Manifest | None, **options: Any) -> ColdDatabase:
    kept = {} if described is None else creators_of(described)
    database: ColdDatabase = registry.cold_backend(RocksDBCreator.backend)(path, kept, **options)
    return database
