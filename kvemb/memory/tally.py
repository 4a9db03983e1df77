"""A sum of what several holders have. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import NamedTuple

from kvemb.threads.interrupts import uninterrupted

# A holder is forgotten once the others have noted so many numbers each since it did.
FORGOTTEN_AFTER = 4


class _Noted(NamedTuple):
    number: int
    at: int  # how many numbers had been noted


class Tally:
    """The sum of the number that each holder noted last, without those of holders that no longer note any."""

    def __init__(self) -> None:
        self.total = 0
        self._noted: dict[Hashable, _Noted] = {}  # the latest last
        self._notes = 0
        self._lock = threading.Lock()

    def note(self, holder: Hashable, number: int) -> None:
        """Set a holder's number; 0 forgets the holder."""
        with uninterrupted(), self._lock:
            self._notes += 1
            self._forget(holder)
            if number:
                self._noted[holder] = _Noted(number, self._notes)
                self.total += number
            while self._noted and self._notes - self._oldest.at > FORGOTTEN_AFTER * len(self._noted):
                self._forget(next(iter(self._noted)))

    @property
    def _oldest(self) -> _Noted:
        return next(iter(self._noted.values()))

    def _forget(self, holder: Hashable) -> None:
        noted = self._noted.pop(holder, None)
        if noted is not None:
            self.total -= noted.number
