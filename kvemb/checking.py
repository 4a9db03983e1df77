"""What is wrong with a checkpoint, or with the tiers of a variable in use: a line for each finding.

Streams: memory does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvemb import inventory, layout, registry
from kvemb.codec import order_keys, record_dtype
from kvemb.contracts import ColdStore
from kvemb.errors import ColdStoreError, Corruption, KvembError
from kvemb.keyfile import read_keys
from kvemb.manifest import NAME, Manifest
from kvemb.meter import Meter, Progress
from kvemb.readable import opened
from kvemb.rows import PENDING, WRITING, RowBlock
from kvemb.schema import Schema
from kvemb.shards import Shards

BATCH_ROWS = 65_536


def table_bytes(described: Manifest) -> int:
    """Bytes of all records of a checkpoint."""
    return sum(entry.rows * record_dtype(entry.schema).itemsize for entry in described.variables.values())


def checkpoint_findings(
    path: Path, described: Manifest, *, deep: bool, progress: Progress | None = None
) -> Iterator[str]:
    """Yield what is wrong with a checkpoint whose manifest could be read.

    Sizes and names of all files and the checksums of small ones; deep: the checksum of every file, every record, every
    key. progress(done, total): called with bytes as they are read.
    """
    file_bytes = sum(entry.bytes for entry in described.files.values())
    meter = Meter(file_bytes + table_bytes(described) if deep else file_bytes, progress)
    sound = True
    for damage in inventory.damages(path, described, deep=deep, progress=meter):
        sound = False
        yield damage
    for folder in (layout.ROWS, layout.CHANGES, layout.HOT):
        for file in sorted((path / folder).glob("*")):
            if file.relative_to(path).as_posix() not in described.files:
                yield f"{file} is not in {NAME}"
    if deep and sound:
        yield from _row_findings(path, described, meter)
        yield from _key_findings(path, described)


def _row_findings(path: Path, described: Manifest, meter: Meter) -> Iterator[str]:
    families = set(registry.cold_backend("rocks").families(path / layout.ROWS))
    for name in sorted(families ^ set(described.variables)):
        where = "only in rows/" if name in families else f"only in {NAME}"
        yield f"{path}: variable {name!r} is {where}"
    with opened(path, described) as readable:
        for name in sorted(families & set(described.variables)):
            entry, count, last = described.variables[name], 0, -1
            cold = readable.rows(name)
            assert cold is not None
            try:
                for rows in cold.scan(BATCH_ROWS):
                    yield from (f"{path}: variable {name!r}: {line}" for line in _batch_findings(rows, last))
                    last = int(order_keys(rows.keys, rows.schema)[-1])
                    count += len(rows)
                    meter(len(rows) * record_dtype(entry.schema).itemsize)
            except (Corruption, ColdStoreError) as error:
                yield f"{path}: variable {name!r} cannot be read after {count:,} rows: {error}"
            else:
                if count != entry.rows:
                    yield f"{path}: variable {name!r} has {count:,} rows and should have {entry.rows:,}"


def _batch_findings(rows: RowBlock, last: int) -> Iterator[str]:
    """last: the ordered key before the batch."""
    ordered = order_keys(rows.keys, rows.schema)
    if int(ordered[0]) <= last or (ordered[1:] <= ordered[:-1]).any():
        yield f"keys do not ascend near {rows.keys[0]}"
    if len(strange := np.flatnonzero(np.isnan(rows.scores))):
        yield f"the score of key {rows.keys[strange[0]]} is not a number"
    if len(strange := np.flatnonzero(rows.flags)):
        yield f"the record of key {rows.keys[strange[0]]} has unknown flags"


def _key_findings(path: Path, described: Manifest) -> Iterator[str]:
    for file in sorted(described.key_files):
        try:
            for _ in read_keys(path / file):
                pass
        except (KvembError, OSError) as error:
            yield str(error)


def tier_findings(shards: Shards, cold: ColdStore, size: int, schema: Schema) -> Iterator[str]:
    """Yield what is wrong with the tiers of a variable none of whose rows is dirty. size: of rows, as it is counted.

    REQUIRES: the tier's lock, and no cut under way.
    """
    for number, table in enumerate(shards.tables):
        cells = table.occupied()
        if table.size != len(cells) or len(cells) > table.capacity_rows:
            yield f"hot table {number} counts {table.size:,} rows in {len(cells):,} of {table.capacity_rows:,} cells"
        for at in range(0, len(cells), BATCH_ROWS):
            rows = table.block.select(cells[at : at + BATCH_ROWS])
            yield from (f"hot table {number}: {line}" for line in _hot_findings(rows, cold))
            if not np.array_equal(table.find(rows.keys), cells[at : at + BATCH_ROWS]):
                yield f"hot table {number}: a key stands in another cell than it is found in"
            owners = shards.of(rows.keys)
            if owners is not None and (owners != number).any():
                yield f"hot table {number}: key {rows.keys[owners != number][0]} belongs to another"
    count, last = 0, -1
    for rows in cold.scan(BATCH_ROWS):
        yield from (f"cold rows: {line}" for line in _batch_findings(rows, last))
        last = int(order_keys(rows.keys, schema)[-1])
        count += len(rows)
    if count != size:
        yield f"there are {count:,} rows and {size:,} are counted"


def _hot_findings(rows: RowBlock, cold: ColdStore) -> Iterator[str]:
    if (rows.flags & (PENDING | WRITING)).any():
        yield "a cell is marked for a cut, and none is under way"
    order = np.argsort(order_keys(rows.keys, rows.schema))
    rows = rows.select(order)
    there, found = cold.read(rows.keys)
    if not found.all():
        yield f"key {rows.keys[~found][0]} is clean and not in the cold store"
    rows = rows.select(found)
    same = (rows.words == there.words).all(axis=1) & (rows.steps == there.steps)
    same &= rows.scores.view(np.uint64) == there.scores.view(np.uint64)
    if not same.all():
        yield f"key {rows.keys[~same][0]} is clean and not as in the cold store"
