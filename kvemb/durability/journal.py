"""The log of writes, for stores opened with durability="write": every acknowledged write outlives a crash.

Segments STORE/log/NNNNNN.log hold the rows as they were after each write, from the durable point of that number on; a
new segment begins at each cut, and those before a durable point are dropped (FORMAT.md, "Log"). append() is called
under a tier's lock, in the order of writes; commit() without, and one fsync serves all who wait for it. What was synced
is noted in the segment's head, without a sync of its own, so that a loss is told from what a crash tore. Thread-safe.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvemb.durability import layout
from kvemb.errors import ColdStoreError, Corruption, UnsupportedFormat
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered, pack_rows

_MAGIC, VERSION = b"kvemblog", 2  # on disk
_HEAD = struct.Struct(">8sI")
_NOTE = struct.Struct("<QQI")  # number of the last entry before this segment, number up to which all was synced, CRC-32
_MARK = b"\xf0kv\x0f"  # begins an entry
# mark, kind, bytes of the name, rows, payload bytes, number, number up to which all was synced, step
_ENTRY = struct.Struct("<4sBxHIIQQq")
_CHECKSUM, _NUMBER = struct.Struct("<I"), struct.Struct("<Q")
ROWS, REMOVED, CLEARED, CONTINUED = 1, 2, 3, 4  # on disk; do not renumber

Data = bytes | mmap.mmap

_ADVICE = "run kvemb verify --deep, and restore from a checkpoint, or kvemb repair, which keeps what can be read"


@dataclass(frozen=True)
class Entry:
    """One write of one variable. kind: ROWS (payload: codec.pack_rows), REMOVED (ordered keys) or CLEARED.

    CONTINUED ends a segment (payload: the number of the next one) and is of no variable.
    """

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
        self._next: tuple[int, int] | None = None  # its file and its number
        try:
            layout.make_directory(directory)
        except OSError as error:
            raise ColdStoreError(f"cannot make {directory}: {error}") from error
        self._file = self._new_segment(number)
        self._before = 0  # entries before this segment

    def append(self, kind: int, variable: str, rows: int, step: int, payload: bytes) -> None:
        """Log a write. Raises ColdStoreError, and on every later call."""
        with self._lock:
            self._append(kind, variable.encode(), rows, step, payload)

    def _append(self, kind: int, name: bytes, rows: int, step: int, payload: bytes) -> None:
        """REQUIRES: the lock."""
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
        """Wait until all that was appended so far is on disk. Raises ColdStoreError, and on every later call."""
        wanted = self._appended
        with self._syncing:
            if self._synced >= wanted:
                return
            with self._lock:
                self._check()
                appended, before, current = self._appended, list(self._unsynced), self._file
                noted = _note(self._before, appended)
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
            with suppress(OSError):  # what is not noted is only not known
                os.pwrite(current, noted, _HEAD.size)
            for file in before:
                os.close(file)

    def prepare(self, number: int) -> None:
        """Make the segment that follows the durable point of this number. Raises ColdStoreError."""
        with self._lock:
            unused, self._next = self._next, None
        if unused is not None:
            os.close(unused[0])
            (self._directory / layout.segment_name(unused[1])).unlink(missing_ok=True)
        self._next = self._new_segment(number), number

    def rotate(self) -> None:
        """Append to the segment that was prepared from now on; the one before says so. Raises ColdStoreError."""
        with self._lock:
            assert self._next is not None
            file, number = self._next
            self._append(CONTINUED, b"", 0, 0, _NUMBER.pack(number))
            try:
                os.pwrite(file, _note(self._appended, self._synced), _HEAD.size)
            except OSError as error:
                self._fail(error)
            self._unsynced.append(self._file)
            self._file, self._before, self._next = file, self._appended, None

    def drop_before(self, number: int) -> None:
        """Forget what the durable point of this number holds."""
        drop_before(self._directory, number)

    def close(self) -> None:
        """Release the files; what was appended is synced, and noted to be, if the disk takes it."""
        with suppress(ColdStoreError, OSError):
            self.commit()
            os.fsync(self._file)
        with self._syncing, self._lock:
            for file in (*self._unsynced, self._file, *([] if self._next is None else self._next[:1])):
                os.close(file)

    def of(self, variable: str) -> WriteLog:
        """Return what a variable's tier writes to."""
        return WriteLog(self, variable)

    def _new_segment(self, number: int) -> int:
        path = self._directory / layout.segment_name(number)
        try:
            path.unlink(missing_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            _write(file, _HEAD.pack(_MAGIC, VERSION) + _note(0, 0))
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


def segments(directory: Path, number: int, *, begun: bool) -> list[Path]:
    """Return the segments from a durable point on, in order. Raises Corruption when the first is missing.

    begun: whether the store says that there is one (layout.current).
    """
    numbered = _numbered(directory)
    later = [(at, path) for at, path in sorted(numbered) if at >= number]
    if (begun and not later) or (later and later[0][0] != number):
        raise _missing(directory / layout.segment_name(number))
    return [path for _, path in later]


def _missing(path: Path) -> Corruption:
    return Corruption(
        f"{path} is missing, and with it the writes since the durable point; restore from a checkpoint, or run kvemb "
        "repair, which keeps the durable point"
    )


def drop_before(directory: Path, number: int) -> None:
    """Delete the segments of before a durable point."""
    for at, path in _numbered(directory):
        if at < number:
            path.unlink(missing_ok=True)


def _numbered(directory: Path) -> list[tuple[int, Path]]:
    named = [(path, layout.segment_number(path.name)) for path in directory.glob("*.log")]
    return [(number, path) for path, number in named if number is not None]


def read(paths: list[Path], *, begun: bool) -> Iterator[Entry]:
    """Yield the writes of consecutive segments, up to the first that was not wholly written: the crash's.

    begun: see segments. Raises Corruption, naming the file, where what is missing had been synced, as a head or a later
    entry tells.
    """
    last = good = at = 0
    for at, path in enumerate(paths):
        data, following = _mapped(path), None
        noted = _noted(path, data)
        if noted is None:
            if begun:
                raise Corruption(f"{path} is damaged: its head cannot be read; {_ADVICE}")
            good = 0
            break
        last, good = last if at else noted[0], _HEAD.size + _NOTE.size
        while following is None and (entry := _entry_at(data, good)) is not None and entry.number == last + 1:
            if entry.kind == CONTINUED:
                following = layout.segment_name(_NUMBER.unpack(entry.payload)[0])
            else:
                yield entry
            last, good = entry.number, _end(data, good)
        if following is None or good != len(data):
            break
        if at + 1 == len(paths) or paths[at + 1].name != following:
            raise _missing(path.with_name(following))
        begun = True
    for path in paths[at:]:
        if (synced := _synced_up_to(path, good if path is paths[at] else 0)) > last:
            raise Corruption(
                f"{paths[at]} is damaged at byte {good:,}: entries up to {synced:,} had been synced, "
                f"{last:,} can be read; {_ADVICE}"
            )


def _synced_up_to(path: Path, start: int) -> int:
    """Return the number up to which entries were synced, as a segment's head and its entries from a byte on tell."""
    data = _mapped(path)
    noted = _noted(path, data)
    return max([0 if noted is None else noted[1], *(entry.synced for entry in _entries_after(data, start))])


def _note(before: int, synced: int) -> bytes:
    """Return the part of a segment's head that changes."""
    numbers = _NOTE.pack(before, synced, 0)[:16]
    return numbers + _CHECKSUM.pack(zlib.crc32(numbers))


def _noted(path: Path, data: Data) -> tuple[int, int] | None:
    """Return the number of the last entry before a segment, and that up to which all was synced; None where a crash
    tore its head. Raises UnsupportedFormat.
    """
    if len(data) >= _HEAD.size and data[: len(_MAGIC)] == _MAGIC and _HEAD.unpack_from(data)[1] != VERSION:
        version = _HEAD.unpack_from(data)[1]
        raise UnsupportedFormat(
            f"{path} has format {version}, this kvemb reads format {VERSION}; use the kvemb that wrote it"
        )
    if len(data) < _HEAD.size + _NOTE.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    before, synced, checksum = _NOTE.unpack_from(data, _HEAD.size)
    return (before, synced) if _note(before, synced)[16:] == _CHECKSUM.pack(checksum) else None


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
    if mark != _MARK or kind not in (ROWS, REMOVED, CLEARED, CONTINUED) or stop + _CHECKSUM.size > len(data):
        return None
    if _CHECKSUM.unpack_from(data, stop)[0] != zlib.crc32(memoryview(data)[at:stop]):
        return None
    if kind == CONTINUED and nbytes != _NUMBER.size:
        return None
    # What is no UTF-8 is no name that a variable can have (kvemb.durability.log_entries).
    name = data[start : start + name_bytes].decode(errors="surrogateescape")
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
