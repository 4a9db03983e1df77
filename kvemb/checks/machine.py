"""How much memory the machine, or this process's container, has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def memory_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the bytes of memory that this process can use: the machine's, or its container's limit if that is less.

    limit: the file in which Linux has the limit of a container, in bytes, or the word "max".
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # there is no container, or it has no limit
        total = min(total, int(limit.read_text()))
    return total
