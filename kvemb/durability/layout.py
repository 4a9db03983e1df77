"""The names of files and directories on disk, and the checks and locks of stores and checkpoints.

All persistent names are defined here, except manifest.json and the paths in it (kvemb.durability.manifest), those of
the log's segments (kvemb.journal.segment_files), those at a URL (kvemb.offline.remote), and RocksDB's own.

    STORE/LOCK               held by the process that has the store open for writing
    STORE/CURRENT            the name of the durable point to open
    STORE/points/000007/     a durable point: a checkpoint inside the store, written by the last flush
    STORE/log/000007.log     the writes since that point, if each is durable (kvemb.journal)
    STORE/marks/ID.json      which durable point is kept, so that the store can go back to it (kvemb.durability.marks)
    STORE/live/              the open database, made again from the durable point whenever the store is opened

A checkpoint is a directory with manifest.json and rows/, a RocksDB database; changes/ and hot/ hold key files,
sightings/ counter files, and files/ what a caller attached.

    ROOT/LOCK                held by the process that writes to a series
    ROOT/00000042/           a checkpoint of a series
    ROOT/PINNED              which of them stay, however many newer ones there are
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvemb import fresh_files
from kvemb.checks import open_file_limit
from kvemb.checks.brief import brief
from kvemb.durability import manifest
from kvemb.durability.lock_file import LockFile
from kvemb.durability.scratch import scratch
from kvemb.errors import CheckpointNotFound, ColdStoreError, Corruption, KvembError, Locked, StoreNotFound

LOCK, CURRENT, POINTS, LOG, LIVE, MARKS = "LOCK", "CURRENT", "points", "log", "live", "marks"
ROWS, CHANGES, HOT, COUNTERS, FILES = "rows", "changes", "hot", "sightings", "files"
PINNED = "PINNED"  # in a series: which checkpoints stay (kvemb.offline.pins)
PULLED = ".pulled"  # in a series: the files received by a pull that has not completed
# On disk; do not change. A store that goes back to a checkpoint continues at the next multiple of so many points, so
# that a follower knows by the number that changes which it has read may have been undone.
POINTS_OF_HISTORY = 10**6
_LOGGED = " log"  # on disk, in CURRENT
# At most this many bytes of a file CURRENT, kvemb's or RocksDB's, are read: more than it has.
_MAX_CURRENT = 64
_POINT, _ROCKS_MANIFEST = re.compile(r"([0-9]{6,18})( log)?\n"), re.compile(r"MANIFEST-[0-9]{6,20}\n")
# Temporary names in a series: a checkpoint that is being written, or deleted.
_LEFT = re.compile(r"\.(\d{8,})\.(\d+-\d+\.tmp|dropped)")


@contextmanager
def as_cold_store_error(what: str) -> Iterator[None]:
    """Translate OSError, such as of a full disk, into ColdStoreError. what: the operation, for the message."""
    try:
        yield
    except KvembError:
        raise
    except OSError as error:
        raise ColdStoreError(f"cannot {what}: {error}{open_file_limit.advice(str(error))}") from error


@contextmanager
def reading_checkpoint(path: Path) -> Iterator[None]:
    """Translate failures because a checkpoint was deleted meanwhile into CheckpointNotFound: it is not damaged."""
    try:
        yield
    except (ColdStoreError, Corruption, FileNotFoundError) as error:
        check_not_deleted(path, error)
        raise


def check_not_deleted(path: Path, cause: Exception | None = None) -> None:
    """Raise CheckpointNotFound if a checkpoint that was being read is there no more. cause: what failed."""
    if not os.path.lexists(path):
        raise CheckpointNotFound(
            f"{path} was deleted while it was read; name a newer checkpoint, or keep more checkpoints"
        ) from cause


def is_checkpoint(path: Path) -> bool:
    """Whether path is a complete checkpoint."""
    return (path / manifest.NAME).is_file()


def is_store(path: Path) -> bool:
    """Whether path is a store with a durable point."""
    return (path / CURRENT).is_file()


def check_outside_stores(path: Path, what: str) -> None:
    """Raise ValueError if path is inside a store: opening the store deletes unknown files in its directories."""
    if store := next((parent for parent in path.resolve().parents if is_store(parent)), None):
        raise ValueError(f"{path} is inside the store {store}; name a directory beside it for the {what}")


def history(point: int) -> int:
    """Return the number of the history to which a durable point belongs: how often its store has gone back."""
    return point // POINTS_OF_HISTORY


def current_point(store: Path) -> Path:
    """Return the durable point that CURRENT names. Raises StoreNotFound or Corruption."""
    return current(store)[0]


def current(store: Path) -> tuple[Path, bool]:
    """Return the durable point that CURRENT names, and whether a log follows it. Raises StoreNotFound or Corruption."""
    text, before = _read_current(store), None
    while (named := _POINT.fullmatch(text)) is None or not (store / POINTS / named[1]).is_dir():
        # A store's owner may have replaced the point since its name was read.
        if text == before and not os.path.lexists(store / POINTS):
            raise Corruption(
                f"{store} has {CURRENT} and no {POINTS}: its deletion by CheckpointManager.resume was interrupted; "
                "call resume again, which completes it, or restore to another path"
            )
        if text == before:
            raise Corruption(
                f"{store / CURRENT} is damaged: it names {brief(text)}, which is not in {store / POINTS}; "
                "run kvemb repair"
            )
        text, before = _read_current(store), text
    return store / POINTS / named[1], named[2] is not None


def _read_current(store: Path) -> str:
    """Return the content of CURRENT. Raises StoreNotFound or Corruption."""
    try:
        with open(store / CURRENT, encoding="ascii", newline="") as file:
            return file.read(_MAX_CURRENT)
    except (FileNotFoundError, NotADirectoryError) as error:
        numbered = sorted(path.name for path in store.glob("[0-9]*") if is_checkpoint(path))
        hint = f"; it is a series of checkpoints: name one, such as {store / numbered[-1]}" if numbered else ""
        raise StoreNotFound(
            f"there is no store at {store}: it has neither {CURRENT} nor {manifest.NAME}{hint}"
        ) from error
    except UnicodeDecodeError as error:
        raise Corruption(
            f"{store / CURRENT} is damaged: it must name a directory in {POINTS}; run kvemb repair"
        ) from error


def point(store: Path, number: int) -> Path:
    """Return the path of a durable point."""
    return store / POINTS / f"{number:06d}"


def keys_name(number: int) -> str:
    """Return the name of a key file in changes/."""
    return f"{number:06d}.keys"


def indexed_name(number: int, index: int, suffix: str = "keys") -> str:
    """Return the name of the index-th file in hot/ ("keys") or sightings/ ("counts") written by a point."""
    return f"{number:06d}-{index:03d}.{suffix}"


def series_name(number: int) -> str:
    """Return the name of a checkpoint of a series."""
    return f"{number:08d}"


def temporary_name(name: str, attempt: int) -> str:
    """Return the temporary name of a directory that this process is writing. attempt: unique in the process."""
    return f".{name}.{os.getpid()}-{attempt}.tmp"


def temporary_names(name: str) -> re.Pattern[str]:
    """Return the pattern of all temporary names of a directory, those of other processes included."""
    return re.compile(rf"\.{re.escape(name)}\.\d+-\d+\.tmp")


def dropped_name(number: int) -> str:
    """Return the temporary name of a checkpoint of a series that is being deleted."""
    return f".{series_name(number)}.dropped"


def left_in_series(name: str) -> tuple[int, bool] | None:
    """Return the number in a temporary name in a series, and whether it is of a deletion; None for another name."""
    found = _LEFT.fullmatch(name)
    return None if found is None else (int(found[1]), found[2] == "dropped")


def set_current(store: Path, number: int, *, logged: bool = False) -> None:
    """Make CURRENT name a point, durably and atomically. logged: a segment of the log follows it, and exists."""
    text = point(store, number).name + (_LOGGED if logged else "") + "\n"
    fresh_files.replace(store / CURRENT, text.encode("ascii"), store / (CURRENT + ".tmp"))


def lock(directory: Path, what: str = "the store {} is open for writing", advice: str | None = None) -> LockFile:
    """Take the lock of a store or a series for this process. Raises Locked, also if this process holds it already.

    what, advice: of the message; "{}" in what is replaced by the directory. advice: None: that of a store, which can be
    read meanwhile if it has a durable point.
    """
    file = LockFile(directory / LOCK, os.O_RDWR | os.O_CREAT)
    if advice is None:
        reading = "; a follower can read it meanwhile" if is_store(directory) else ""
        advice = f"close it there{reading}"
    file.lock(fcntl.LOCK_EX, what.format(directory), advice)
    file.name_owner()
    return file


@contextmanager
def locked_for_reading(store: Path) -> Iterator[None]:
    """Hold a shared lock, so that no process opens the store for writing. Raises Locked."""
    try:
        file = LockFile(store / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        yield  # a copy of a store that was never opened
        return
    with file:
        file.lock(fcntl.LOCK_SH, f"the store {store} is open for writing", "close it there")
        yield


def was_not_closed(store: Path) -> bool:
    """Whether the last owner of a store ended without closing it, so that its log, if any, may have newer writes."""
    if not (store / LIVE).exists():
        return False
    with suppress(Locked), locked_for_reading(store):
        return True
    return False  # it is open


def check_rows(rows: Path) -> None:
    """Raise Corruption unless rows is a RocksDB directory; RocksDB itself would create one."""
    current = rows / "CURRENT"
    if not current.is_file():
        raise Corruption(f"{rows} is damaged: it has no file CURRENT; restore from another checkpoint")
    with open(current, "rb") as file:
        named = file.read(_MAX_CURRENT).decode("latin-1")
    if _ROCKS_MANIFEST.fullmatch(named) is None or not (rows / named[:-1]).is_file():
        raise Corruption(
            f"{current} is damaged: it must name a manifest of RocksDB in {rows}, got {brief(named)}; "
            "restore from another checkpoint"
        )


def unpack(checkpoint: Path, target: Path, files: Collection[str]) -> None:
    """Copy a checkpoint's rows and some other files to target: hard links for files that never change, else copies.

    files: paths below the checkpoint, of files that never change.

    Raises Corruption or ColdStoreError; then target does not exist.
    """
    check_rows(checkpoint / ROWS)
    try:
        (target / ROWS).mkdir(parents=True)
        _link_files(checkpoint / ROWS, target / ROWS)
        link(checkpoint, target, files)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise ColdStoreError(f"cannot copy {checkpoint} to {target}: {error}") from error


def link(checkpoint: Path, target: Path, files: Collection[str]) -> None:
    """Make hard links to some files of a checkpoint, paths below it, in a directory that exists. Raises OSError."""
    for folder in {name.rpartition("/")[0] for name in files}:
        (target / folder).mkdir(exist_ok=True)
    for name in files:
        fresh_files.link_or_copy(f"{checkpoint}/{name}", f"{target}/{name}")


def _link_files(source: Path, target: Path) -> None:
    for name in os.listdir(source):
        if name.endswith((".sst", ".blob")):
            fresh_files.link_or_copy(f"{source}/{name}", f"{target}/{name}")
        elif not name.startswith("LOG"):
            shutil.copyfile(source / name, target / name)


@contextmanager
def mirrored(rows: Path) -> Iterator[Path]:
    """Yield a temporary directory of symbolic links to the files of `rows`.

    A database opened through it adds no files to `rows`, and needs no permission to write there.
    """
    check_rows(rows)
    with scratch("kvemb-read-") as links:
        for file in rows.resolve().iterdir():
            if file.name == "rocksdict-config.json":
                shutil.copyfile(file, links / file.name)  # rocksdict rewrites it
            elif not file.name.startswith("LOG"):
                (links / file.name).symlink_to(file)
        yield links
