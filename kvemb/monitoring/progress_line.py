"""A line for the progress bar of a training loop: the hit rate, and how many rows are looked up in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvemb.checks.seconds import as_seconds
from kvemb.errors import KvembError
from kvemb.monitoring.scalars import Counted, check_source
from kvemb.threads.interrupts import uninterrupted


class ProgressLine:
    """Says in a line what a store or a variable does now, such as "hit rate 93.1%, 1,204,000 rows/s".

    text() is for tqdm's `bar.set_postfix_str(line.text())`, for a column of rich's `Progress`, or for `print`. Call it
    in every step: it reads the counts once a second. Both figures are of the interval since it read them last. Rows are
    counted as often as they are looked up, keys without a row included. Thread-safe.

    Args:
        source: A store (the sum of its open variables) or a variable.
        every_seconds: How long a line stays. Then the next call of text() makes a new one.
        clock: A function that returns the time in seconds.

    Raises:
        TypeError: If source has no `stats`, or every_seconds is no number.
        ValueError: If every_seconds is negative.
        KvembError: What `source.stats` raises, such as ShardLost.

    Example:
        >>> from kvemb.monitoring import ProgressLine
        >>> seconds = iter([0.0, 0.5, 0.75])
        >>> line = ProgressLine(store, clock=lambda: next(seconds))
        >>> rows = users.lookup([1, 2, 3])
        >>> line.text()
        'hit rate 100.0%, 6 rows/s'
        >>> rows = users.lookup([1, 2, 3])
        >>> line.text()
        'hit rate 100.0%, 6 rows/s'
    """

    def __init__(
        self, source: Counted, *, every_seconds: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every = as_seconds(every_seconds, "every_seconds", least=0)
        self._before, self._then = check_source(source), clock()
        self._source, self._clock = source, clock
        self._lock = threading.Lock()
        self._text = ""

    def text(self) -> str:
        """Return the line that a progress bar shows now.

        It stays as it is while the counts cannot be read, such as after a cluster lost a shard: the next call
        of the store raises the error.

        Returns:
            The hit rate and the rows per second; without lookups, only the latter. Empty until time has passed.
        """
        with uninterrupted(), self._lock:
            at = self._clock()
            elapsed = at - self._then
            if elapsed <= 0 or (self._text and elapsed < self._every):
                return self._text
            try:
                now = self._source.stats
            except KvembError:
                return self._text
            between = now - self._before
            self._before, self._then = now, at
            # Less than before if a variable was dropped meanwhile.
            count = max(0, between.hits + between.misses + between.absent)
            rate = f"{count / elapsed:,.0f} rows/s"
            found = min(between.hits, between.misses) >= 0 and between.hits + between.misses > 0
            self._text = f"hit rate {between.hit_rate:.1%}, {rate}" if found else rate
            return self._text

    def __repr__(self) -> str:
        return f"<kvemb.monitoring.ProgressLine of {self._source!r}>"
