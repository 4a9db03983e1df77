"""The segments of the log of writes: their names, their format (FORMAT.md, "Log"), listing, reading and deleting.

Files are mapped, not read into memory. REQUIRES: no other thread or process writes to the segments.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvemb.errors import Corruption, KvembError, UnsupportedFormat

MAGIC, VERSION = b"kvemblog", 3  # on disk
READABLE = (2, VERSION)  # version 2 has no entries of the kind COUNTED
HEAD = struct.Struct(">8sI")
NOTE = struct.Struct("<QQI")  # number of the last entry before this segment, number up to which all was synced, CRC-32
MARK = b"\xf0kv\x0f"  # begins an entry
# mark, kind, bytes of the name, rows, payload bytes, number, number up to which all was synced, step
ENTRY = struct.Struct("<4sBxHIIQQq")
CHECKSUM, NUMBER = struct.Struct("<I"), struct.Struct("<Q")
ROWS, REMOVED, CLEARED, CONTINUED, COUNTED = 1, 2, 3, 4, 5  # on disk; do not renumber

Data = bytes | mmap.mmap

_ADVICE = "run kvemb verify --deep; then restore from a checkpoint, or run kvemb repair, which keeps what can be read"


@dataclass(frozen=True)
class LogEntry:
    """One write of one variable. kind: ROWS (payload: codec.pack_rows), REMOVED (ordered keys), CLEARED, or COUNTED
    (how many steps of its optimizer were counted so far, NUMBER).

    CONTINUED ends a segment (payload: the number of the next one) and has no variable.
    """

    kind: int
    variable: str
    rows: int
    step: int
    payload: bytes
    number: int
    synced: int


def counted(entry: LogEntry) -> int:
    """Return the count of an entry of the kind COUNTED."""
    count: int = NUMBER.unpack(entry.payload)[0]
    return count


def segment_name(number: int) -> str:
    """Return the name of the segment that follows a durable point."""
    return f"{number:06d}.log"


def segment_number(name: str) -> int | None:
    """Return the number in the name of a segment, None for another name."""
    return int(name[:-4]) if re.fullmatch(r"[0-9]{6,18}\.log", name) else None


def segments(directory: Path, number: int, *, begun: bool) -> list[Path]:
    """Return the segments from a durable point on, in order. Raises Corruption if the first is missing.

    begun: whether the store's CURRENT says that there is a segment (layout.current).
    """
    numbered = _numbered(directory)
    later = [(at, path) for at, path in sorted(numbered) if at >= number]
    if (begun and not later) or (later and later[0][0] != number):
        raise _missing(directory / segment_name(number))
    return [path for _, path in later]


def has_writes(directory: Path, number: int, *, begun: bool) -> bool:
    """Whether there may be writes after a durable point: the log has one, or is damaged or missing.

    begun: see segments.
    """
    try:
        return next(read(segments(directory, number, begun=begun), begun=begun), None) is not None
    except (KvembError, OSError):
        return True


def _missing(path: Path) -> Corruption:
    return Corruption(
        f"{path} is missing, and with it the writes since the durable point; restore from a checkpoint, or run kvemb "
        "repair, which keeps the durable point"
    )


def delete_before(directory: Path, number: int) -> None:
    """Delete the segments before a durable point."""
    for at, path in _numbered(directory):
        if at < number:
            path.unlink(missing_ok=True)


def _numbered(directory: Path) -> list[tuple[int, Path]]:
    named = [(path, segment_number(path.name)) for path in directory.glob("*.log")]
    return [(number, path) for path, number in named if number is not None]


def read(paths: list[Path], *, begun: bool) -> Iterator[LogEntry]:
    """Yield the writes of consecutive segments, up to the first entry that a crash left incomplete.

    begun: see segments. Raises Corruption, naming the file, if an entry is missing that had been synced, according to a
    head or a later entry.
    """
    left, path, last, good = paths[1:], next(iter(paths), None), None, 0
    while path is not None:
        data, following = _mapped(path), None
        noted = _noted(path, data)
        if noted is None:
            if begun:
                raise Corruption(f"{path} is damaged: its head cannot be read; {_ADVICE}")
            good = 0
            break
        last, good = noted[0] if last is None else last, HEAD.size + NOTE.size
        while following is None and (entry := _entry_at(data, good)) is not None and entry.number == last + 1:
            if entry.kind == CONTINUED:
                following = segment_name(NUMBER.unpack(entry.payload)[0])
            else:
                yield entry
            last, good = entry.number, _end(data, good)
        if following is None or good != len(data):
            break
        while left and left[0].name != following:
            left = left[1:]  # it was prepared and never used
        if not left:
            raise _missing(path.with_name(following))
        path, left, begun = left[0], left[1:], True
    for other in [path, *left] if path is not None else []:
        if (synced := _synced_up_to(other, good if other is path else 0)) > (last or 0):
            raise Corruption(
                f"{path} is damaged at byte {good:,}: entries up to {synced:,} had been synced, "
                f"but only those up to {last or 0:,} can be read; {_ADVICE}"
            )


def _synced_up_to(path: Path, start: int) -> int:
    """Return the number of the last synced entry, according to a segment's head and its entries from byte start on."""
    data = _mapped(path)
    noted = _noted(path, data)
    return max([0 if noted is None else noted[1], *(entry.synced for entry in _entries_after(data, start))])


def note(before: int, synced: int) -> bytes:
    """Return the second part of a segment's head, which is rewritten after each sync."""
    numbers = NOTE.pack(before, synced, 0)[:16]
    return numbers + CHECKSUM.pack(zlib.crc32(numbers))


def _noted(path: Path, data: Data) -> tuple[int, int] | None:
    """Return the numbers of the last entry before a segment and of the last synced entry; None if the head is torn.

    Raises UnsupportedFormat.
    """
    if len(data) >= HEAD.size and data[: len(MAGIC)] == MAGIC and HEAD.unpack_from(data)[1] not in READABLE:
        version = HEAD.unpack_from(data)[1]
        raise UnsupportedFormat(
            f"{path} has format {version}, this kvemb reads formats {' and '.join(map(str, READABLE))}; use the kvemb "
            "that wrote it"
        )
    if len(data) < HEAD.size + NOTE.size or data[: len(MAGIC)] != MAGIC:
        return None
    before, synced, checksum = NOTE.unpack_from(data, HEAD.size)
    return (before, synced) if note(before, synced)[16:] == CHECKSUM.pack(checksum) else None


def _mapped(path: Path) -> Data:
    """Return a file's bytes, memory-mapped."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def _entry_at(data: Data, at: int) -> LogEntry | None:
    """Return the entry that begins at a byte, None if there is no complete one."""
    if len(data) - at < ENTRY.size:
        return None
    mark, kind, name_bytes, rows, nbytes, number, synced, step = ENTRY.unpack_from(data, at)
    start = at + ENTRY.size
    stop = start + name_bytes + nbytes
    if mark != MARK or kind not in (ROWS, REMOVED, CLEARED, CONTINUED, COUNTED) or stop + CHECKSUM.size > len(data):
        return None
    if CHECKSUM.unpack_from(data, stop)[0] != zlib.crc32(memoryview(data)[at:stop]):
        return None
    if kind == CONTINUED and nbytes != NUMBER.size:
        return None
    # A name that is not UTF-8 matches no variable, which kvemb.durability.recovery reports.
    name = data[start : start + name_bytes].decode(errors="surrogateescape")
    return LogEntry(kind, name, rows, step, data[start + name_bytes : stop], number, synced)


def _end(data: Data, at: int) -> int:
    _, _, name_bytes, _, nbytes, *_ = ENTRY.unpack_from(data, at)
    return at + ENTRY.size + int(name_bytes) + int(nbytes) + CHECKSUM.size


def _entries_after(data: Data, at: int) -> Iterator[LogEntry]:
    while (at := data.find(MARK, at)) >= 0:
        entry = _entry_at(data, at)
        if entry is not None:
            yield entry
        at += 1 if entry is None else len(MARK)
