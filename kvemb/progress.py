"""Progress of long work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvemb.threads.interrupts import uninterrupted

# Called with (done, total), in bytes or rows.
Progress = Callable[[int, int], None]


class Meter:
    """Counts the work done of a total, in bytes or rows, and reports after each part. Thread-safe.

    Reported counts never decrease.
    """

    def __init__(self, total: int, report: Progress | None) -> None:
        self._done, self._total, self._report = 0, total, report
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Count this much as done."""
        with uninterrupted(), self._lock:
            self._done = min(self._done + count, self._total)
            if self._report is not None:
                self._report(self._done, self._total)
