"""The page cache of a folder's table files: filled by reading them, or emptied so that reads reach the disk.

The kernel keeps pages that a process has mapped, so this process's mappings release theirs first; the next access maps
them again. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

_MADV_DONTNEED = 4
_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +(/.*)")
_READ_BYTES = 8 << 20


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
    """Drop the folder's table files from the page cache, except pages that are not yet written to the disk."""
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
