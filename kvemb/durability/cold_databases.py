"""Opening of cold databases, one function for each use: read and write, read in place, salvage, repair, sorting.

All cold databases of kvemb are opened here. The caller closes the database. path: RocksDB's directory. described: the
manifest; its variables must be the column families, otherwise Corruption. cache_bytes: of the block cache.
All raise ColdStoreError, Corruption, BackendUnavailable.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvemb import registry
from kvemb.checks.brief import brief
from kvemb.contracts import ColdDatabase, ColdStore, Family, SortedFile
from kvemb.durability import layout
from kvemb.durability.manifest import NAME, Manifest
from kvemb.errors import Corruption
from kvemb.limits import DEFAULT, Limits
from kvemb.options import MemoryCreator, RocksDBCreator
from kvemb.rows.codec import KEY_BYTES, record_dtype
from kvemb.rows.schema import Schema

# Sizes for databases that are outside any store's budget.
READING_BYTES, SORTING_BYTES = 8 << 20, 1 << 20


def to_write(
    path: Path, described: Manifest, *, cache_bytes: int, page_cache: int | None = None, limits: Limits = DEFAULT
) -> ColdDatabase:
    """Open a database for reading and writing, or create an empty one.

    page_cache: bytes of memory that are left for the system to cache its files; None: enough.
    """
    return _rocks(path, described, cache_bytes=cache_bytes, page_cache=page_cache, read_only=False, limits=limits)


def to_read(
    path: Path, described: Manifest, *, cache_bytes: int = READING_BYTES, limits: Limits = DEFAULT
) -> ColdDatabase:
    """Open a database read-only."""
    return _rocks(path, described, cache_bytes=cache_bytes, read_only=True, limits=limits)


def to_salvage(path: Path, described: Manifest) -> ColdDatabase:
    """Open a database that may be damaged or lack files, read-only, for ColdStore.rescue."""
    return _rocks(path, described, cache_bytes=READING_BYTES, read_only=True, salvaging=True)


def to_repair_into(path: Path) -> ColdDatabase:
    """Create an empty database for salvaged rows."""
    return _rocks(path, None, cache_bytes=READING_BYTES, read_only=False)


def to_sort_in(path: Path) -> ColdDatabase:
    """Create an empty database that ingests table files and is read once: without compaction."""
    return _rocks(path, None, cache_bytes=SORTING_BYTES, read_only=False, compacting=False)


def to_extend(path: Path) -> ColdDatabase:
    """Open a copy of a database with any variables, to add and drop some and to ingest files: without compaction."""
    found = {name: Family(RocksDBCreator()) for name in families(path)}
    database: ColdDatabase = registry.cold_backend(RocksDBCreator.backend)(
        path, found, cache_bytes=SORTING_BYTES, read_only=False, compacting=False
    )
    return database


def families(path: Path) -> list[str]:
    """Return the names of the cold stores in a database, without opening it."""
    names: list[str] = registry.cold_backend(RocksDBCreator.backend).families(path)
    return names


def check_variables(path: Path, described: Manifest) -> None:
    """Raise Corruption unless a database has a cold store for each variable of the manifest, and no other."""
    names: set[str] = set()
    if (path / "CURRENT").exists():
        layout.check_rows(path)
        names = set(families(path))
    if differing := sorted(names ^ set(described.variables)):
        # A database that is read in place is opened through links: name the directory that they lead to.
        place = next(path.glob("MANIFEST-*"), path / "CURRENT").resolve().parent
        where = (
            f"in {place.name}/ but not in {NAME}" if differing[0] in names else f"in {NAME} but not in {place.name}/"
        )
        more = f", and {len(differing) - 1} more variables differ" if len(differing) > 1 else ""
        raise Corruption(
            f"{place} is damaged: the variable {brief(differing[0])} is {where}{more}; restore from another checkpoint"
        )


def amend(path: Path, *, drop: Iterable[str] = (), added: Iterable[tuple[str, SortedFile]] = ()) -> None:
    """Change a copy of a database that is not open. See ColdDatabase.amend."""
    registry.cold_backend(RocksDBCreator.backend).amend(path, drop, added)


def in_memory(schema: Schema) -> ColdStore:
    """Create a cold store in memory."""
    rows: ColdStore = registry.cold_backend(MemoryCreator.backend)(schema)
    return rows


def creators_of(described: Manifest) -> dict[str, RocksDBCreator]:
    """Return the creator of each variable's cold store. Raises UnsupportedFormat."""
    return {name: RocksDBCreator.from_json(entry.creator) for name, entry in described.variables.items()}


def _rocks(path: Path, described: Manifest | None, **options: Any) -> ColdDatabase:
    stores = {}
    if described is not None:
        creators = creators_of(described)
        stores = {
            name: Family(creators[name], entry.rows, record_dtype(entry.schema).itemsize + KEY_BYTES)
            for name, entry in described.variables.items()
        }
        check_variables(path, described)
    database: ColdDatabase = registry.cold_backend(RocksDBCreator.backend)(path, stores, **options)
    return database
