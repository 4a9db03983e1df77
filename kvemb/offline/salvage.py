"""Repair: writes everything readable in a damaged checkpoint or store to a new store, and reports what is lost.

If a block of a table file cannot be read, its whole range of keys is left out: another file may have older rows of
these keys, which must not reappear. The log's entries are newer than the table files and are added.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvemb import hard_links
from kvemb.checks.brief import brief
from kvemb.contracts import ColdDatabase, ColdStore, Gap
from kvemb.durability import cold_databases, inventory, layout, manifest, paths
from kvemb.durability.admission_counters.counter_file import CounterFile, read_counters
from kvemb.durability.admission_counters.point_files import Stored, write_counter_files
from kvemb.durability.buffered_store import BufferedStore
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checking import table_bytes
from kvemb.durability.checkpoint import atomic_directory, complete
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import Epoch, Manifest
from kvemb.durability.recovery import checked, replay
from kvemb.durability.scratch import scratch
from kvemb.errors import Corruption, StoreNotFound, UnsupportedFormat
from kvemb.journal import segment_files
from kvemb.journal.segment_files import LogEntry
from kvemb.masking import masked
from kvemb.memory.memtables import MemtableMemory
from kvemb.offline.remote_checking import RemoteChecking, is_pushed
from kvemb.offline.transfer import Remote
from kvemb.progress import Meter, Progress
from kvemb.rows.codec import key_at, record_dtype
from kvemb.rows.schema import Schema

BATCH_ROWS = 65_536
# Of rows that wait for a file.
REPAIR_BYTES = 64 << 20
CONFIG = "rocksdict-config.json"


@dataclass
class Saved:
    """Count the saved rows of one variable.

    Attributes:
        rows: Rows that were saved.
        lost: Rows that are missing.
        gaps: Ranges of keys (first, last) that are left out, ends included.
    """

    rows: int = 0
    lost: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Repair:
    """Hold the result of ``repair``.

    Attributes:
        source: The checkpoint or durable point that was read; or text with its number and URL.
        out: The new store.
        damages: One line for each damage that was found.
        variables: What was saved of each variable, by name.
        logged: Rows that were added from the log.
    """

    source: Path | str
    out: Path
    damages: list[str] = field(default_factory=list)
    variables: dict[str, Saved] = field(default_factory=dict)
    logged: int = 0


def repair(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Write everything readable in a checkpoint or a closed store to a new store, and report what is lost.

    ``path`` is not changed. The new store has its own identity and follows no checkpoint. It does not record which rows
    were hot, nor which keys changed since which checkpoint. Sightings of an ``Admission`` are kept unless they are
    damaged. It has no marks: the path of a mark is repaired like a checkpoint. At a URL, the newest complete checkpoint
    is taken, and all damage is listed.

    Args:
        path: The checkpoint, the store, or a URL to which a series was pushed.
        out: The new store's directory, which must be missing or empty.
        options: fsspec's options for a URL's filesystem, a dict.
        progress: ``fn(done, total)``, called with bytes as they are read.

    Returns:
        What was damaged, saved and lost.

    Raises:
        StoreNotFound: There is neither a checkpoint nor a store at the path.
        FileExistsError: ``out`` is not empty.
        Locked: A process has the store open for writing.
        ColdStoreError: The disk could not be read or written.
        Corruption: The manifest, or RocksDB's own, is damaged, without which the contents of the files are unknown. Or
            no checkpoint at the URL is without damage.
        UnsupportedFormat: It was written by a kvemb with another format.
        TransferError: The URL could not be read.
        TypeError, ValueError: An argument is not valid.

    Example:
        >>> saved = store.checkpoint("damaged")
        >>> repaired = kvemb.repair("damaged", "repaired")
        >>> repaired.damages, repaired.variables["users"]
        ([], Saved(rows=3, lost=0, gaps=[]))
    """
    out = paths.local(out, "out")
    paths.check_not_in_series(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not empty; name a new directory to repair to")
    if paths.is_url(path) or is_pushed(paths.local(path)):
        return _repair_remote(str(path), out, options, progress)
    path = paths.local(path)
    paths.check_options(path, options)
    if layout.is_checkpoint(path):
        with layout.reading_checkpoint(path):
            return _repair(path, None, out, progress, [])
    if not (path / layout.POINTS).is_dir():
        raise StoreNotFound(f"{path} is neither a checkpoint nor a store; name one")
    with layout.locked_for_reading(path):
        point, logged, damages = _point_of(path)
        return _repair(point, (path / layout.LOG, logged), out, progress, damages)


def _repair_remote(url: str, out: Path, options: Mapping[str, Any] | None, progress: Progress | None) -> Repair:
    checked = RemoteChecking(url, options).check(deep=True)
    if not checked.sound:
        raise Corruption(f"every checkpoint at {masked(url)} is damaged: {checked.findings[0]}")
    with scratch("kvemb-repair-") as place:
        number = max(checked.sound)
        Remote(url, options).pull(number, place / series_name(number), [], place / layout.PULLED)
        done = _repair(place / series_name(number), None, out, progress, list(checked.findings))
    done.source = f"checkpoint {number} at {masked(url)}"
    return done


def _point_of(store: Path) -> tuple[Path, bool, list[str]]:
    """Return a store's durable point, whether CURRENT says that a log follows it, and the damages of CURRENT.

    If CURRENT is damaged or missing, this is the newest point.
    """
    try:
        return *layout.current(store), []
    except (StoreNotFound, Corruption) as error:
        points = [path for path in (store / layout.POINTS).iterdir() if path.name.isdecimal()]
        if not points:
            raise Corruption(f"{store} has no durable point; restore from a checkpoint") from error
        damage = f"{store / layout.CURRENT} is missing" if isinstance(error, StoreNotFound) else str(error)
        return max(points, key=lambda path: int(path.name)), False, [damage]


def _repair(
    source: Path, log: tuple[Path, bool] | None, out: Path, progress: Progress | None, damages: list[str]
) -> Repair:
    described = manifest.read(source)
    meter = Meter(sum(entry.bytes for entry in described.files.values()) + table_bytes(described), progress)
    damages += inventory.damages(source, described, deep=True, progress=meter)
    if damages:
        layout.check_not_deleted(source)
    done = Repair(source, out, damages)
    identity = uuid.uuid4().hex
    fresh = Manifest(
        identity, uuid.uuid4().hex, None, described.point, manifest.created_now(), changes=[Epoch(identity)]
    )
    with layout.as_cold_store_error(f"write {out}"):
        if out.exists():
            out.rmdir()  # it is empty
        with atomic_directory(out) as store:
            hard_links.check_possible(store, out)
            live, point = store / layout.LIVE, layout.point(store, described.point)
            (live / layout.CHANGES).mkdir(parents=True)
            point.mkdir(parents=True)
            new = cold_databases.to_repair_into(live / layout.ROWS)
            try:
                fresh = _fill(new, source, described, fresh, done, meter)
                if log is not None:
                    changes = ChangeLog(live / layout.CHANGES, fresh.changes)
                    entries, memory = _entries(*log, described, done), MemtableMemory(REPAIR_BYTES)
                    variables, done.logged = replay(entries, fresh, new, changes, memory)
                    fresh = replace(fresh, variables=variables)
                new.checkpoint(point / layout.ROWS)
                fresh = replace(fresh, sightings=_counter_files(source, described, point))
            finally:
                new.close()
            complete(point, fresh)
            layout.set_current(store, described.point)
            shutil.rmtree(live)
    return done


def _fill(
    new: ColdDatabase, source: Path, described: Manifest, fresh: Manifest, done: Repair, meter: Meter
) -> Manifest:
    """Write everything readable to a database. Returns the new manifest, with the number of rows written."""
    creators, variables = cold_databases.creators_of(described), {}
    with _readable(source, described) as links:
        old = cold_databases.to_salvage(links, described)
        try:
            for name, entry in described.variables.items():
                target = new.create(name, entry.schema, creators[name])
                done.variables[name] = _save(old.attach(name, entry.schema), target, entry.schema, entry.rows, meter)
                variables[name] = replace(entry, rows=done.variables[name].rows)
        finally:
            old.close()
    return replace(fresh, variables=variables)


def _save(old: ColdStore, new: ColdStore, schema: Schema, expected: int, meter: Meter) -> Saved:
    saved = Saved()
    with closing(BufferedStore(new, schema, MemtableMemory(REPAIR_BYTES))) as buffered:
        for piece in old.rescue(BATCH_ROWS):
            if isinstance(piece, Gap):
                saved.gaps.append((key_at(piece.first, schema), key_at(piece.last, schema)))
            else:
                buffered.write(piece)
                saved.rows += len(piece)
                meter(len(piece) * record_dtype(schema).itemsize)
        buffered.flush()
    saved.lost = expected - saved.rows
    return saved


@contextmanager
def _readable(source: Path, described: Manifest) -> Iterator[Path]:
    """Yield a directory with links to a checkpoint's existing table files, and the other files that RocksDB needs.

    Of the latter, only RocksDB's manifest is linked; the others are written again. Raises Corruption.
    """
    names = [name for name in described.files if name.startswith(f"{layout.ROWS}/MANIFEST-")]
    if len(names) != 1:
        raise Corruption(
            f"{source / layout.ROWS} is damaged: it must have one manifest of RocksDB, {manifest.NAME} names "
            f"{brief(sorted(names)) if names else 'none'}; restore from another checkpoint"
        )
    inventory.check(source, replace(described, files={name: described.files[name] for name in names}))
    with scratch("kvemb-repair-") as links:
        for file in (source / layout.ROWS).resolve().iterdir():
            if file.suffix == ".sst" or f"{layout.ROWS}/{file.name}" in names:
                (links / file.name).symlink_to(file)
        (links / "CURRENT").write_text(names[0].removeprefix(f"{layout.ROWS}/") + "\n", encoding="ascii")
        (links / CONFIG).write_text('{"raw_mode":true,"prefix_extractors":{}}', encoding="ascii")
        yield links


def _counter_files(source: Path, described: Manifest, point: Path) -> dict[str, CounterFile]:
    """Link the undamaged counter files to a new point; returns their entries. Damaged ones are listed already."""
    sound: Stored = {}
    for name, counted in described.sightings.items():
        with suppress(Corruption, UnsupportedFormat):
            read_counters(source / layout.COUNTERS, counted)
            sound[name] = source / layout.COUNTERS, counted
    return write_counter_files(point / layout.COUNTERS, described.point, sound, {}, {}, sound)


def _entries(log: Path, begun: bool, described: Manifest, done: Repair) -> Iterator[LogEntry]:
    """Yield the log's entries up to the first unreadable one."""
    try:
        segments = segment_files.segments(log, described.point, begun=begun)
        yield from checked(segments, described.variables, begun=begun)
    except Corruption as error:
        done.damages.append(str(error))
