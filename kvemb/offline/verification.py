"""Verification of a checkpoint or a closed store on disk. Reads only."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvemb.durability import journal_segments, layout, log_entries, manifest, paths
from kvemb.durability.checking import checkpoint_findings
from kvemb.durability.checkpoint import describe_path
from kvemb.durability.manifest import Manifest
from kvemb.errors import CheckpointNotFound, Corruption, StoreNotFound
from kvemb.meter import Progress


@dataclass
class Verification:
    """Result of verify(). It is true if nothing is wrong.

    path: what was verified. findings: one line for each error, naming the file. notes: remarks that are no errors.
    rows: by variable. files, nbytes: of the checkpoint or of the store's durable point.
    """

    path: Path
    deep: bool
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0
    nbytes: int = 0

    def __bool__(self) -> bool:
        return not self.findings


def verify(path: str | os.PathLike[str], *, deep: bool = False, progress: Progress | None = None) -> Verification:
    """Return what is wrong with a checkpoint, or with a store that no process has open for writing.

    Checks every file's name and size, the manifest, and the checksums of all files except tables and key files;
    deep: reads everything, and checks all checksums, records and keys, their order and their counts.
    progress(done, total): called with bytes as they are read. Memory does not grow with the table. Changes nothing.
    Raises StoreNotFound if path is neither, Locked, UnsupportedFormat.
    """
    path = paths.local(path)
    found = Verification(path, bool(deep))
    if layout.is_checkpoint(path):
        _verify_checkpoint(path, found, progress)
    elif layout.is_store(path):
        with layout.locked_for_reading(path):
            _verify_store(path, found, progress)
    elif (path / layout.ROWS).is_dir():
        found.findings.append(f"{path / manifest.NAME} is missing")
    elif (path / layout.POINTS).is_dir():
        found.findings.append(f"{path / layout.CURRENT} is missing")
    else:
        raise StoreNotFound(describe_path(path))
    return found


def _verify_checkpoint(path: Path, found: Verification, progress: Progress | None) -> Manifest | None:
    try:
        described = manifest.read(path)
    except CheckpointNotFound:
        found.findings.append(f"{path / manifest.NAME} is missing")
        return None
    except Corruption as error:
        found.findings.append(str(error))
        return None
    found.rows = {name: entry.rows for name, entry in described.variables.items()}
    found.files = len(described.files)
    found.nbytes = sum(entry.bytes for entry in described.files.values())
    found.findings += checkpoint_findings(path, described, deep=found.deep, progress=progress)
    return described


def _verify_store(path: Path, found: Verification, progress: Progress | None) -> None:
    try:
        point, logged = layout.current(path)
    except Corruption as error:
        found.findings.append(str(error))
        return
    described = _verify_checkpoint(point, found, progress)
    if described is None:
        return
    rows = 0
    try:
        segments = journal_segments.segments(path / layout.LOG, described.point, begun=logged)
        for entry in log_entries.checked(segments, described.variables, begun=logged):
            rows += entry.rows
    except Corruption as error:
        found.findings.append(str(error))
    if (path / layout.LIVE).exists():
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(described.created))
        found.notes.append(
            f"{path} was not closed: opening it recovers its durable point of {when}"
            + (f" and {rows:,} rows written later, from the log" if rows else "")
        )
