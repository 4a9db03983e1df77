"""Verification of a checkpoint or a closed store on disk. Reads only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kvemb import registry
from kvemb.durability import layout, manifest, paths, recovery
from kvemb.durability.checking import checkpoint_findings
from kvemb.durability.manifest import Manifest
from kvemb.durability.marks.kept import read_marks
from kvemb.errors import CheckpointNotFound, Corruption, StoreNotFound, UnsupportedFormat
from kvemb.journal import segment_files
from kvemb.masking import masked
from kvemb.offline.places import divided, is_elsewhere
from kvemb.offline.remote_checking import RemoteChecking
from kvemb.options import format_count, format_time
from kvemb.progress import Progress


@dataclass
class Verification:
    """Hold the result of ``verify``. It is true if nothing is wrong.

    Attributes:
        path: What was verified, a str if it is a URL.
        deep: Whether everything was read.
        findings: One line for each error, which names the file.
        notes: Remarks that are not errors.
        rows: The number of rows by variable; of a series, those of the newest checkpoint that can be read.
        files: The number of files of what was verified; of a series, one that several checkpoints share counts once.
        nbytes: The bytes of these files.
    """

    path: Path | str
    deep: bool
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0
    nbytes: int = 0

    def __bool__(self) -> bool:
        return not self.findings


def verify(
    path: str | os.PathLike[str],
    *,
    deep: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verify a checkpoint, a store that no process has open for writing, or all checkpoints of a series.

    Checks every file's name and size, the manifest, and the checksums of all files except tables and key files. Changes
    nothing. Memory does not grow with the table.

    Of a series, local or at a URL to which a series or a cluster's shards pushed, all checkpoints are checked: each
    description, and the files that it needs, deltas included. ``SERIES/00000042`` checks only that one. Of a store, the
    durable points that marks keep are checked, too.

    Args:
        path: The checkpoint, store, series or URL.
        deep: Whether to read everything: all checksums, records and keys, their order and their counts; at a URL, every
            byte.
        options: fsspec's options for a URL's filesystem, a dict.
        progress: ``fn(done, total)``, called with bytes as they are read; of a local series, for each checkpoint anew.

    Returns:
        What was found; false if something is wrong.

    Raises:
        StoreNotFound: There is neither a checkpoint nor a store at the path.
        Locked: A process has the store open for writing.
        UnsupportedFormat: It was written by a kvemb with another format.
        CheckpointNotFound: There is no such checkpoint, or it was deleted meanwhile.
        TransferError: The URL could not be read.
        TypeError, ValueError: An argument is not valid.

    Example:
        >>> saved = store.checkpoint("backup")
        >>> found = kvemb.verify("backup", deep=True)
        >>> bool(found), found.rows, found.findings
        (True, {'users': 3}, [])
    """
    root, number = divided(path)
    if is_elsewhere(root):
        remote = RemoteChecking(root, options)
        if remote.is_of_cluster:
            how = {"number": number, "deep": deep, "options": options, "progress": progress}
            return cast(Verification, registry.of_cluster("verify")(root, **how))
        return _verify_remote(root, number, remote, bool(deep), progress)
    path = paths.local(path)
    paths.check_options(path, options)
    found = Verification(path, bool(deep))
    if layout.is_checkpoint(path):
        with layout.reading_checkpoint(path):
            _verify_checkpoint(path, found, progress)
        if found.findings:
            layout.check_not_deleted(path)
    elif layout.is_store(path):
        with layout.locked_for_reading(path):
            _verify_store(path, found, progress)
    elif numbers := paths.series_numbers(path):
        _verify_series(path, numbers, found, progress)
    elif (path / layout.ROWS).is_dir():
        found.findings.append(f"{path / manifest.NAME} is missing")
    elif (path / layout.POINTS).is_dir():
        found.findings.append(f"{path / layout.CURRENT} is missing")
    else:
        raise StoreNotFound(paths.describe(path))
    return found


def _verify_remote(
    url: str, number: int | None, remote: RemoteChecking, deep: bool, progress: Progress | None
) -> Verification:
    checked = remote.check(number=number, deep=deep, progress=progress)
    found = Verification(masked(url), deep, checked.findings, files=checked.files, nbytes=checked.nbytes)
    if checked.described:
        newest = max(checked.described)
        found.rows = {name: entry.rows for name, entry in checked.described[newest].described.variables.items()}
    _note_sound(found, checked.sound, len(checked.described), masked(url))
    return found


def _verify_series(root: Path, numbers: list[int], found: Verification, progress: Progress | None) -> None:
    """Check all checkpoints of a local series, but for those that are deleted meanwhile."""
    files: dict[str, int] = {}
    sound = []
    for number in numbers:
        path = root / layout.series_name(number)
        checked = Verification(path, found.deep)
        try:
            with layout.reading_checkpoint(path):
                described = _verify_checkpoint(path, checked, progress)
            if checked.findings:
                layout.check_not_deleted(path)
        except CheckpointNotFound:
            continue
        except UnsupportedFormat as error:
            checked.findings.append(str(error))
            described = None
        if described is not None:
            found.rows = checked.rows
            files |= {entry.sha256: entry.bytes for entry in described.files.values()}
        found.findings += checked.findings
        sound += [] if checked.findings else [number]
    found.files, found.nbytes = len(files), sum(files.values())
    _note_sound(found, sound, len(numbers), str(root))


def _note_sound(found: Verification, sound: list[int], count: int, where: str) -> None:
    """Note which checkpoints of a series with damage can still be restored."""
    if not found:
        whole = ", ".join(map(str, sound)) or "none"
        found.notes.append(f"of the {format_count(count, 'checkpoint')} at {where}, these are undamaged: {whole}")


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
        segments = segment_files.segments(path / layout.LOG, described.point, begun=logged)
        for entry in recovery.checked(segments, described.variables, begun=logged):
            rows += entry.rows
    except Corruption as error:
        found.findings.append(str(error))
    _verify_marks(path, point, found)
    if (path / layout.LIVE).exists():
        when = format_time(described.created)
        found.notes.append(
            f"{path} was not closed: opening it recovers its durable point of {when}"
            + (f" and {format_count(rows, 'row')} written later, from the log" if rows else "")
        )


def _verify_marks(path: Path, point: Path, found: Verification) -> None:
    """Check the durable points that marks keep, but for that of the store itself."""
    try:
        kept = {mark.path for mark in read_marks(path)} - {point}
    except Corruption as error:
        found.findings.append(str(error))
        return
    for each in sorted(kept):
        checked = Verification(each, found.deep)
        _verify_checkpoint(each, checked, None)
        found.findings += checked.findings
        found.files, found.nbytes = found.files + checked.files, found.nbytes + checked.nbytes
