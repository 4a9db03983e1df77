"""The largest of the numbers that were noted lately."""

from __future__ import annotations

from collections.abc import Callable


class RecentMost:
    """The largest number noted in the last `seconds` to twice as many; 0 once none was noted for `seconds`.

    clock: returns seconds. Not thread-safe.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._began = self._noted = -2 * seconds + clock()  # the present period, and the last note
        self._earlier = self._now = 0  # the largest of the period before, and of the present one

    def note(self, number: int) -> None:
        """Note a number."""
        now = self._clock()
        if now >= self._began + self._seconds:
            self._earlier = self._now if now < self._began + 2 * self._seconds else 0
            self._began, self._now = now, 0
        self._now, self._noted = max(self._now, number), now

    @property
    def value(self) -> int:
        """The largest of them."""
        return max(self._earlier, self._now) if self._clock() < self._noted + self._seconds else 0
