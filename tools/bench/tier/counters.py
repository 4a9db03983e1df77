"""The cost of a window of steps: rows/s, CPU time of the whole process, and bytes read from and written to the disk.

Bytes are the kernel's counts for this process (/proc/self/io): bytes fetched from the disk, read-ahead included, and
pages of files written. Reads from the page cache are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvemb.tools.bench.data import Ids
from kvemb.tools.bench.measure import until_idle

_COUNTS = Path("/proc/self/io")


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


def figures_of(
    train: Callable[[list[Ids], float], list[float]], batches: list[Ids], seconds: float, batch: int
) -> dict[str, float]:
    """Call train(batches, seconds), which returns the seconds of its steps; return rows/s, and the costs per row.

    The flushes and merges after it are included. batch: rows of a step.
    """
    before, began = usage(), time.perf_counter()
    steps = train(batches, seconds)
    wall, used = until_idle() - began, usage() - before
    rows = max(1, len(steps)) * batch
    return {
        "rows_per_s": rows / wall,
        "cpu_us": 1e6 * used.cpu / rows,
        "read_bytes": used.read / rows,
        "written_bytes": used.written / rows,
    }
