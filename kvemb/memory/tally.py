"""A sum of what several holders have. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Tally:
    """The sum of one number of each holder."""

    def __init__(self) -> None:
        self.total = 0
        self._numbers: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def note(self, holder: Hashable, number: int) -> None:
        """Set a holder's number; 0 forgets the holder."""
        with self._lock:
            self.total += number - self._numbers.pop(holder, 0)
            if number:
                self._numbers[holder] = number
