"""Verification of a checkpoint: one line for each finding. Memory does not grow with the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvemb.durability import inventory, layout
from kvemb.durability.admission_counters.counter_file import read_counters
from kvemb.durability.keyfile import read_keys
from kvemb.durability.manifest import NAME, Manifest
from kvemb.durability.readable import opened
from kvemb.errors import ColdStoreError, Corruption, KvembError
from kvemb.progress import Meter, Progress
from kvemb.rows.codec import order_keys, record_dtype
from kvemb.tiers.checking import order_findings

BATCH_ROWS = 65_536


def table_bytes(described: Manifest) -> int:
    """Return the bytes of all records of a checkpoint."""
    return sum(entry.rows * record_dtype(entry.schema).itemsize for entry in described.variables.values())


def checkpoint_findings(
    path: Path, described: Manifest, *, deep: bool, progress: Progress | None = None
) -> Iterator[str]:
    """Yield what is wrong with a checkpoint whose manifest could be read.

    Checks the sizes and names of all files and the checksums of small ones; deep: all checksums, records and keys.
    progress(done, total): called with bytes as they are read.
    """
    file_bytes = sum(entry.bytes for entry in described.files.values())
    meter = Meter(file_bytes + table_bytes(described) if deep else file_bytes, progress)
    sound = True
    for damage in inventory.damages(path, described, deep=deep, progress=meter):
        sound = False
        yield damage
    for folder in (layout.ROWS, layout.CHANGES, layout.HOT, layout.COUNTERS, layout.FILES):
        for file in sorted((path / folder).glob("*")):
            if file.relative_to(path).as_posix() not in described.files:
                yield f"{file} is not in {NAME}"
    if deep and sound:
        try:
            yield from _row_findings(path, described, meter)
        except (Corruption, ColdStoreError) as error:
            yield str(error)
        yield from _findings_of_named_files(path, described)


def _row_findings(path: Path, described: Manifest, meter: Meter) -> Iterator[str]:
    with opened(path, described) as readable:
        for name, entry in sorted(described.variables.items()):
            count, last = 0, -1
            cold = readable.rows(name)
            assert cold is not None
            try:
                for rows in cold.scan(BATCH_ROWS):
                    yield from (f"{path}: variable {name!r}: {line}" for line in order_findings(rows, last))
                    last = int(order_keys(rows.keys, rows.schema)[-1])
                    count += len(rows)
                    meter(len(rows) * record_dtype(entry.schema).itemsize)
            except (Corruption, ColdStoreError) as error:
                yield f"{path}: variable {name!r} cannot be read after {count:,} rows: {error}"
            else:
                if count != entry.rows:
                    yield f"{path}: variable {name!r} has {count:,} rows and should have {entry.rows:,}"


def _findings_of_named_files(path: Path, described: Manifest) -> Iterator[str]:
    for file in sorted(file for file in described.named_files if file.endswith(".keys")):
        try:
            for _ in read_keys(path / file):
                pass
        except (KvembError, OSError) as error:
            yield str(error)
    for counted in described.sightings.values():
        try:
            read_counters(path / layout.COUNTERS, counted)
        except KvembError as error:
            yield str(error)
