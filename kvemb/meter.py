"""Telling how far long work has come."""

from __future__ import annotations

import threading
from collections.abc import Callable

# Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


class Meter:
    """Counts bytes up to a total, and tells after each piece. Thread-safe: what it tells never goes back."""

    def __init__(self, total: int, tell: Progress | None) -> None:
        self._done, self._total, self._tell = 0, total, tell
        self._lock = threading.Lock()

    def __call__(self, nbytes: int) -> None:
        """Count a piece that is done."""
        with self._lock:
            self._done = min(self._done + nbytes, self._total)
            if self._tell is not None:
                self._tell(self._done, self._total)
