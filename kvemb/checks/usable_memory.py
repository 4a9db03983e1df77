"""How much memory the machine, or this process's container, has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def memory_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes of memory that this process can use: the machine's, or a limit of its control groups if less.

    groups, own: where Linux shows the groups, and those of this process.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in _limits(groups, own):
        with suppress(OSError, ValueError):  # the group is not shown in this container, or has no limit
            total = min(total, int(limit.read_text()))
    return total


def _limits(groups: Path, own: Path) -> Iterator[Path]:
    """Yield the files with the limits of a process's groups and of those above them, in either version of groups."""
    lines = own.read_text().splitlines() if own.exists() else []
    for _, controllers, name in (line.split(":", 2) for line in lines):
        group = PurePosixPath(name.strip("/"))
        for each in (group, *group.parents):
            if not controllers:
                yield groups / each / "memory.max"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / each / "memory.limit_in_bytes"
