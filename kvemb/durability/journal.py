"""The log of writes, for stores opened with durability="write": every acknowledged write outlives a crash.

Segments STORE/log/NNNNNN.log hold the rows as they were after each write, from the durable point of that number on; a
new segment begins at each cut, and those before a durable point are dropped (FORMAT.md, "Log"). append() is called
under a tier's lock, in the order of writes; commit() without, and one fsync serves all who wait for it. Thread-safe.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvemb.durability import layout
from kvemb.errors import ColdStoreError, Corruption, UnsupportedFormat
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered, pack_rows

_MAGIC, VERSION = b"kvemblog", 1  # on disk
_HEAD = struct.Struct(">8sI")
_MARK = b"\xf0kv\x0f"  # begins an entry
# mark, kind, bytes of the name, rows, payload bytes, number, number up to which all was synced, step
_ENTRY = struct.Struct("<4sBxHIIQQq")
_CHECKSUM = struct.Struct("<I")
ROWS, REMOVED, CLEARED = 1, 2, 3  # on disk; do not renumber

Data = bytes | mmap.mmap


@dataclass(frozen=True)
class Entry:
    """One write of one variable. kind: ROWS (payload: codec.pack_rows), REMOVED (ordered keys) or CLEARED."""

    kind: int
    variable: str
    rows: int
    step: int
    payload: bytes
    number: int
    synced: int


class Journal:
    """The log of a store that is open. number: of the durable point it goes on from."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self._lock = threading.Lock()  # guards all but _synced
        self._syncing = threading.Lock()  # guards _synced; taken before _lock
        self._appended = self._synced = 0
        self._failure: ColdStoreError | None = None
        self._unsynced: list[int] = []
        self._next: int | None = None
        try:
            layout.make_directory(directory)
        except OSError as error:
            raise ColdStoreError(f"cannot make {directory}: {error}") from error
        self._file = self._new_segment(number)

    def append(self, kind: int, variable: str, rows: int, step: int, payload: bytes) -> None:
        """Log a write. Raises ColdStoreError, then for ever."""
        name = variable.encode()
        with self._lock:
            self._check()
            number = self._appended + 1
            head = _ENTRY.pack(_MARK, kind, len(name), rows, len(payload), number, self._synced, step)
            checksum = zlib.crc32(payload, zlib.crc32(name, zlib.crc32(head)))
            try:
                _write(self._file, b"".join((head, name, payload, _CHECKSUM.pack(checksum))))
            except OSError as error:
                self._fail(error)
            self._appended = number

    def commit(self) -> None:
        """Wait until all that was appended so far is on disk. Raises ColdStoreError, then for ever."""
        wanted = self._appended
        with self._syncing:
            if self._synced >= wanted:
                return
            with self._lock:
                self._check()
                appended, before, current = self._appended, list(self._unsynced), self._file
            try:
                for file in (*before, current):
                    os.fdatasync(file)
            except OSError as error:
                with self._lock:
                    self._fail(error)
            # Only now: who is interrupted above leaves them to the next.
            with self._lock:
                del self._unsynced[: len(before)]
            self._synced = appended
            for file in before:
                os.close(file)

    def prepare(self, number: int) -> None:
        """Make the segment that follows the durable point of this number. Raises ColdStoreError."""
        with self._lock:
            unused, self._next = self._next, None
        if unused is not None:
            os.close(unused)
        self._next = self._new_segment(number)

    def rotate(self) -> None:
        """Append to the segment that was prepared from now on."""
        with self._lock:
            assert self._next is not None
            self._unsynced.append(self._file)
            self._file, self._next = self._next, None

    def drop_before(self, number: int) -> None:
        """Forget what the durable point of this number holds."""
        drop_before(self._directory, number)

    def close(self) -> None:
        """Release the files."""
        with self._syncing, self._lock:
            for file in (*self._unsynced, self._file, *([] if self._next is None else [self._next])):
                os.close(file)

    def of(self, variable: str) -> WriteLog:
        """Return what a variable's tier writes to."""
        return WriteLog(self, variable)

    def _new_segment(self, number: int) -> int:
        path = self._directory / layout.segment_name(number)
        try:
            path.unlink(missing_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            _write(file, _HEAD.pack(_MAGIC, VERSION))
            os.fsync(file)
            layout.sync_directory(self._directory)
        except OSError as error:
            raise ColdStoreError(f"cannot write {path}: {error}") from error
        return file

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: OSError) -> None:
        # What a failed fsync lost cannot be known, and a torn entry hides those after it.
        self._failure = ColdStoreError(error.errno, f"cannot write the log in {self._directory}: {error}")
        raise self._failure from error


class WriteLog:
    """contracts.WriteLog: one variable's side of the log."""

    def __init__(self, journal: Journal, variable: str) -> None:
        self._journal, self._variable = journal, variable

    def rows(self, rows: RowBlock, step: int) -> None:
        """See contracts.WriteLog."""
        self._journal.append(ROWS, self._variable, len(rows), step, pack_rows(rows))

    def removed(self, keys: Ordered, step: int) -> None:
        """See contracts.WriteLog."""
        self._journal.append(REMOVED, self._variable, len(keys), step, keys.astype("<u8").tobytes())

    def cleared(self, step: int) -> None:
        """See contracts.WriteLog."""
        self._journal.append(CLEARED, self._variable, 0, step, b"")

    def commit(self) -> None:
        """See contracts.WriteLog."""
        self._journal.commit()


def segments(directory: Path, number: int) -> list[Path]:
    """Return the segments from a durable point on, in order. Raises Corruption when the first is missing."""
    numbered = _numbered(directory)
    later = [(at, path) for at, path in sorted(numbered) if at >= number]
    if later and later[0][0] != number:
        raise Corruption(f"{directory / layout.segment_name(number)} is missing; restore from a checkpoint")
    return [path for _, path in later]


def drop_before(directory: Path, number: int) -> None:
    """Delete the segments of before a durable point."""
    for at, path in _numbered(directory):
        if at < number:
            path.unlink(missing_ok=True)


def _numbered(directory: Path) -> list[tuple[int, Path]]:
    named = [(path, layout.segment_number(path.name)) for path in directory.glob("*.log")]
    return [(number, path) for path, number in named if number is not None]


def read(paths: list[Path]) -> Iterator[Entry]:
    """Yield the entries of consecutive segments, up to the first that was not wholly written: the crash's.

    Raises Corruption, naming the file, where that entry had been synced, which a later one tells.
    """
    last = 0
    for at, path in enumerate(paths):
        data = _mapped(path)
        good = _begin(path, data)
        while good and (entry := _entry_at(data, good)) is not None and (last == 0 or entry.number == last + 1):
            yield entry
            last = entry.number
            good = _end(data, good)
        if good == len(data):
            continue
        for later in paths[at:]:
            for entry in _entries_after(_mapped(later), good if later is path else 0):
                if entry.synced > last:
                    raise Corruption(
                        f"{path} is damaged at byte {good:,}: entries up to {entry.synced:,} had been synced, "
                        f"{last:,} can be read; run kvemb verify --deep, or restore from a checkpoint"
                    )
        return


def _begin(path: Path, data: Data) -> int:
    """Return where a segment's entries begin, 0 where a crash tore its head. Raises UnsupportedFormat."""
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        return 0
    if (version := _HEAD.unpack_from(data)[1]) != VERSION:
        raise UnsupportedFormat(
            f"{path} has format {version}, this kvemb reads format {VERSION}; use the kvemb that wrote it"
        )
    return _HEAD.size


def _mapped(path: Path) -> Data:
    """A file's bytes, in no memory of ours."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def _entry_at(data: Data, at: int) -> Entry | None:
    """Return the entry that begins at a byte, None where there is no whole one."""
    if len(data) - at < _ENTRY.size:
        return None
    mark, kind, name_bytes, rows, nbytes, number, synced, step = _ENTRY.unpack_from(data, at)
    start = at + _ENTRY.size
    stop = start + name_bytes + nbytes
    if mark != _MARK or kind not in (ROWS, REMOVED, CLEARED) or stop + _CHECKSUM.size > len(data):
        return None
    if _CHECKSUM.unpack_from(data, stop)[0] != zlib.crc32(memoryview(data)[at:stop]):
        return None
    name = data[start : start + name_bytes].decode()
    return Entry(kind, name, rows, step, data[start + name_bytes : stop], number, synced)


def _end(data: Data, at: int) -> int:
    _, _, name_bytes, _, nbytes, *_ = _ENTRY.unpack_from(data, at)
    return at + _ENTRY.size + int(name_bytes) + int(nbytes) + _CHECKSUM.size


def _entries_after(data: Data, at: int) -> Iterator[Entry]:
    while (at := data.find(_MARK, at)) >= 0:
        entry = _entry_at(data, at)
        if entry is not None:
            yield entry
        at += 1 if entry is None else len(_MARK)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
