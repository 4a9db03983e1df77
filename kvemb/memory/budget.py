"""The budget of one memory: staging (kvemb.memory.staging) and the like are taken from it first, cells get the rest.

Tables of hot rows grow into what is free, and may be asked to give some of their cells back, down to a few
(kvemb.memory.rebalancer). Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from kvemb.memory.rebalancer import Rebalancer, Share
from kvemb.options import format_bytes
from kvemb.threads.interrupts import uninterrupted

# How long reserve() waits for memory to be given back, and how often it checks.
WAIT_SECONDS, PAUSE_SECONDS = 30.0, 0.002
# In how many steps a part grows (GrowingPart).
GROWTH_STEPS = 8


class Budget:
    """`total` bytes of one memory.

    whose, advice: for messages. check_giving: raises an error if memory is no longer given back. rebalancer: the hot
    tables that grow, guarded by the budget's lock.
    """

    def __init__(
        self,
        total: int,
        *,
        whose: str = "the store's",
        advice: str = "open the store with a larger memory_budget or ask for less",
        check_giving: Callable[[], None] = lambda: None,
    ) -> None:
        self.total = self._free = total
        self._whose, self._advice, self._check_giving = whose, advice, check_giving
        self._reserving: list[None] = []  # an entry for each reservation in progress, for which others leave memory
        self._lock = threading.Lock()
        self.rebalancer = Rebalancer()

    @property
    def free(self) -> int:
        """Bytes that are not taken; negative: so many more than there are."""
        return self._free

    # What does not grow by itself.

    def reserve(self, nbytes: int, what: str, *, below_min: bool = False) -> None:
        """Take nbytes, after waiting for growing tables to give them back. Raises ValueError.

        what: what they are for, in the message. below_min: if necessary, tables shrink below their min_bytes, so that
        variables that were open together can be opened again in any order. Raises what check_giving raises, instead of
        waiting.
        """
        until = time.monotonic() + WAIT_SECONDS
        self._reserving.append(None)
        try:
            while True:
                with uninterrupted(), self._lock:
                    if nbytes <= self._free:
                        self._free -= nbytes
                        return
                    missing = nbytes - self._free
                    if missing > self.rebalancer.available(below_min=below_min) or time.monotonic() >= until:
                        break
                    self._check_giving()
                    giving = self.rebalancer.ask(missing, below_min=below_min)
                _wake(giving)
                time.sleep(PAUSE_SECONDS)
        finally:
            self._reserving.pop()
        raise ValueError(
            f"{what} needs {format_bytes(nbytes)}, but {format_bytes(self.free)} of {self._whose} budget of "
            f"{format_bytes(self.total)} are free; {self._advice}"
        )

    def take(self, nbytes: int) -> None:
        """Take nbytes, free or not; negative: give back. Growing tables are asked for what is not free."""
        with uninterrupted(), self._lock:
            self._free -= nbytes
            giving = self.rebalancer.ask(-self._free)
        _wake(giving)

    def try_take(self, nbytes: int) -> bool:
        """Take nbytes if they are free; return whether. If not, growing tables are asked for them."""
        with uninterrupted(), self._lock:
            if self._can_take(nbytes):
                self._free -= nbytes
                return True
            giving = self.rebalancer.ask(nbytes - self._free)
        _wake(giving)
        return False

    def give_back(self, nbytes: int) -> None:
        """Free nbytes that were taken."""
        with uninterrupted(), self._lock:
            self._free += nbytes

    def _can_take(self, nbytes: int) -> bool:
        return nbytes <= self._free and not self._reserving

    # The hot tables that grow (kvemb.memory.rebalancer).

    def join(self, share: Share) -> None:
        """Add a share, whose memory is reserved; from now on it may grow and be asked to give memory back."""
        with uninterrupted(), self._lock:
            self.rebalancer.shares.append(share)

    def leave(self, share: Share) -> None:
        """Remove a share and free what it holds."""
        with uninterrupted(), self._lock:
            self.rebalancer.shares.remove(share)
            self._free += share.held

    def grow(self, share: Share, nbytes: int) -> bool:
        """Take nbytes for a share if they are free and nobody needs them more; return whether they were taken."""
        with uninterrupted(), self._lock:
            grows = self._can_take(nbytes) and not (share.owed or share.donor)
            if grows:
                self._free -= nbytes
                share.held += nbytes
            else:
                share.refused = True
            return grows

    def shrink(self, share: Share, nbytes: int) -> None:
        """Free nbytes that a share has given back; 0: it can give no more."""
        with uninterrupted(), self._lock:
            share.shrunk(nbytes)
            self._free += nbytes

    def offered(self, share: Share, rows: int) -> None:
        """Record that rows were offered to a share that could not grow; this may end the turn."""
        with uninterrupted(), self._lock:
            called = self.rebalancer.offered(share, rows)
            late = [other for other in called if other.due]
            for other in called:
                other.due = True
        for other in called:
            other.notify()
        for other in late:
            other.wake()


class GrowingPart:
    """A part of the budget, of `total` bytes, which grows up to `most` bytes in GROWTH_STEPS steps, and never shrinks.

    more: takes bytes of the budget for it; returns whether they were there. used: bytes that somebody has. lock:
    guards everything here.
    """

    def __init__(self, total: int, most: int = 0, more: Callable[[int], bool] = lambda nbytes: False) -> None:
        self.total, self.used = total, 0
        self._most, self._step, self._more = most, max(1, (most - total) // GROWTH_STEPS), more
        self.lock = threading.Lock()

    @property
    def free(self) -> int:
        """Bytes that nobody has."""
        return self.total - self.used

    def grow(self) -> None:
        """Grow by a step, if it may and the budget has the bytes. REQUIRES: the lock."""
        if self.total + self._step <= self._most and self._more(self._step):
            self.total += self._step


def _wake(giving: Iterable[Share]) -> None:
    for share in giving:
        share.notify()
        share.wake()
