"""What `kvemb bench tier` asks of the kernel, on Linux alone: counts of bytes, and the page cache of table files.

Bytes are the kernel's counts for this process (/proc/self/io): bytes fetched from the disk, read-ahead included, and
pages of files written. Reads from the page cache are not counted.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

_COUNTS = Path("/proc/self/io")
_MADV_DONTNEED = 4
_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +(/.*)")
_READ_BYTES = 8 << 20


@dataclass(frozen=True)
class Usage:
    """Counts since the process began: CPU seconds, bytes read from and written to the disk."""

    cpu: float
    read: int
    written: int

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.cpu - other.cpu, self.read - other.read, self.written - other.written)


def usage() -> Usage:
    """Return the counts up to now."""
    counts = dict(line.split(": ") for line in _COUNTS.read_text().splitlines())
    return Usage(time.process_time(), int(counts["read_bytes"]), int(counts["write_bytes"]))


def counted() -> bool:
    """Whether this system counts a process's bytes."""
    return _COUNTS.exists()


def table_files(folder: Path) -> list[Path]:
    """Return the table files in a folder and below, each once, even if it has several hard links."""
    return sorted({path.stat().st_ino: path for path in folder.rglob("*.sst")}.values())


def fill(folder: Path) -> None:
    """Read every table file once."""
    for path in table_files(folder):
        with open(path, "rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def empty(folder: Path) -> None:
    """Drop the folder's table files from the page cache, except pages that are not yet written to the disk.

    The kernel keeps pages that a process has mapped, so this process's mappings release theirs first; the next access
    maps them again.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = _MAPPED.match(line)
        if found and found[3].endswith(".sst") and Path(found[3]).is_relative_to(folder):
            first, last = int(found[1], 16), int(found[2], 16)
            if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_DONTNEED):
                raise OSError(ctypes.get_errno(), "madvise failed", found[3])
    for path in table_files(folder):
        number = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)
