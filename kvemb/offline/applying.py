"""Applies deltas to the rows of a copy of a checkpoint, which become those of a later checkpoint, bit for bit.

All deltas are merged first, so that each variable gets only one more run of files, for any number of deltas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kvemb.contracts import ColdDatabase, SortedFile
from kvemb.durability import cold_databases, layout
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import Corruption
from kvemb.limits import DEFAULT
from kvemb.offline.delta_file import DeltaFile, frame_rows
from kvemb.offline.merging import merged
from kvemb.options import RocksDBCreator
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import record_dtype


def apply(rows: Path, variables: Mapping[str, VariableEntry], chains: list[list[DeltaFile]]) -> None:
    """Change the RocksDB directory `rows`, copied from a checkpoint, to the state of a later one.

    rows: a folder of a draft (durability.checkpoint), beside which files are made. variables: of the later checkpoint.
    chains: each a sequence of deltas that leads from the one checkpoint to the other; there may be several with
    disjoint keys, such as those of a cluster's shards. Raises Corruption, ColdStoreError.
    """
    names = set(cold_databases.families(rows))
    database = cold_databases.to_extend(rows)
    try:
        for name in sorted(names - set(variables)):
            database.drop(name)
        for name, entry in variables.items():
            counted = [_first(deltas, name) for deltas in chains]
            if len({kept for _, kept in counted}) > 1:
                raise Corruption(f"the deltas do not agree whether {name!r} was cleared; pull into another series")
            kept = counted[0][1]
            if name in names and not kept:
                database.drop(name)
            if name in names and kept:
                database.attach(name, entry.schema)
            else:
                database.create(name, entry.schema, RocksDBCreator.from_json(entry.creator))
            deltas = [delta for chain, (first, _) in zip(chains, counted, strict=True) for delta in chain[first:]]
            blocks = _blocks(deltas, name, entry, replaced=not (name in names and kept))
            _take_in(database, name, entry, blocks, rows.parent)
    finally:
        database.close()
    _tidy(rows)


def write_rows(rows: Path, variables: Mapping[str, VariableEntry], blocks: Callable[[str], Iterator[RowBlock]]) -> None:
    """Make a new RocksDB directory. rows: as for apply(). blocks(name): the rows of a variable, in key order."""
    rows.mkdir()
    database = cold_databases.to_sort_in(rows)
    try:
        for name, entry in variables.items():
            database.create(name, entry.schema, RocksDBCreator.from_json(entry.creator))
            _take_in(database, name, entry, blocks(name), rows.parent)
    finally:
        database.close()
    _tidy(rows)


def _tidy(rows: Path) -> None:
    for left in (*rows.glob("LOG*"), rows / "LOCK"):
        left.unlink(missing_ok=True)


def _first(deltas: list[DeltaFile], name: str) -> tuple[int, bool]:
    """Return the first delta whose rows count for a variable, and whether earlier rows count, too."""
    for at in reversed(range(len(deltas))):
        if (part := deltas[at].parts.get(name)) is None:
            return at + 1, False  # the variable was dropped, and made again later
        if part.cleared:
            return at, False
    return 0, True


def _blocks(deltas: list[DeltaFile], name: str, entry: VariableEntry, *, replaced: bool) -> Iterator[RowBlock]:
    """Yield the rows of all deltas in key order. replaced: leave out removals, as there are no earlier rows."""
    window = 2 * frame_rows(record_dtype(entry.schema).itemsize)
    for block in merged([delta.rows(name, entry.schema) for delta in deltas], entry.schema, window):
        yield block.select(block.flags & REMOVED == 0) if replaced else block


def _take_in(database: ColdDatabase, name: str, entry: VariableEntry, blocks: Iterator[RowBlock], draft: Path) -> None:
    max_rows = max(1, DEFAULT.table_file_bytes // RowBlock.bytes_per_row(entry.schema))
    path, file = draft / "merged.sst", None
    for block in blocks:
        if len(block):
            file = file or database.sorted_file(path, entry.schema, RocksDBCreator.from_json(entry.creator))
            file.append(block)
            if file.rows >= max_rows:
                _ingest(database, name, file)
                file = None
    if file is not None:
        _ingest(database, name, file)


def _ingest(database: ColdDatabase, name: str, file: SortedFile) -> None:
    file.finish()
    database.ingest(name, file.path)
    with layout.as_cold_store_error(f"delete {file.path}"):
        file.path.unlink()
