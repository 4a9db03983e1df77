"""The budget of one memory, from which the cells of hot tables are paid.

Cells are reserved; growing tables may be asked to give some back, down to a few (kvemb.memory.rebalancer). What a store
needs for rows that are in no cell is set aside from the start (kvemb.memory.staging). Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from kvemb.memory.rebalancer import Rebalancer, Share
from kvemb.options import format_bytes
from kvemb.threads.interrupts import uninterrupted

# How long reserve() waits for memory to be given back, and how often it checks.
WAIT_SECONDS, PAUSE_SECONDS = 30.0, 0.002
# In how many steps a part grows (GrowingPart).
GROWTH_STEPS = 8


class Budget:
    """`total` bytes of one memory, handed out in reservations.

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
        self.total = self.for_growth = self._free = total
        self._whose, self._advice, self._check_giving = whose, advice, check_giving
        self._reserving: list[None] = []  # an entry for each reservation in progress
        self._lock = threading.Lock()
        self.rebalancer = Rebalancer()

    def set_aside(self, nbytes: int) -> None:
        """Take nbytes for other things than cells, free or not; a negative number: give back.

        for_growth is what is left: the bytes that one table may grow to if nothing else uses the budget.
        """
        with uninterrupted(), self._lock:
            self.for_growth -= nbytes
        self.use(nbytes)

    def try_set_aside(self, nbytes: int) -> bool:
        """Do what set_aside does if they are free; return whether. If not, growing tables are asked for them."""
        with uninterrupted(), self._lock:
            if nbytes <= self._free and not self._reserving:
                self._free -= nbytes
                self.for_growth -= nbytes
                return True
            giving = self._ask_tables(nbytes - self._free)
        _wake(giving)
        return False

    @property
    def free(self) -> int:
        """Bytes that are not reserved."""
        return self._free

    def try_grow(self, nbytes: int) -> bool:
        """Take nbytes if they are free and not about to be reserved; return whether they were taken."""
        with uninterrupted(), self._lock:
            grows = nbytes <= self._free and not self._reserving
            self._free -= nbytes if grows else 0
            return grows

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
        """Take nbytes for a share as try_grow does, unless others need memory more; return whether they were taken."""
        if share.owed or share.donor or not self.try_grow(nbytes):
            share.refused = True
            return False
        with uninterrupted(), self._lock:
            share.held += nbytes
        return True

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

    def shrink(self, share: Share, nbytes: int) -> None:
        """Free nbytes that a share has given back; 0: it can give no more."""
        with uninterrupted(), self._lock:
            share.shrunk(nbytes)
            self._free += nbytes

    def use(self, nbytes: int) -> None:
        """Take nbytes, free or not. Growing tables are asked for what is not free, as far as they can give it."""
        with uninterrupted(), self._lock:
            self._free -= nbytes
            giving = self._ask_tables(-self._free)
        _wake(giving)

    def _ask_tables(self, nbytes: int) -> list[Share]:
        """Raise what growing tables owe to nbytes in all; return those that owe. REQUIRES: the lock."""
        self.rebalancer.ask(nbytes - self.rebalancer.owed)
        return [share for share in self.rebalancer.shares if share.owed]

    def give_back(self, nbytes: int) -> None:
        """Free nbytes that were reserved."""
        with uninterrupted(), self._lock:
            self._free += nbytes

    def reserve(self, nbytes: int, what: str, *, below_min: bool = False) -> None:
        """Reserve nbytes, after waiting for growing tables to give them back. Raises ValueError.

        what: what they are for, in the message. below_min: if necessary, tables shrink below their min_bytes, so that
        variables that were open together can be opened again in any order. Raises what check_giving raises, instead of
        waiting.
        """
        with self._no_growth():
            until = time.monotonic() + WAIT_SECONDS
            while True:
                with uninterrupted(), self._lock:
                    if nbytes <= self._free:
                        self._free -= nbytes
                        return
                    had = self._free + self.rebalancer.owed
                    if nbytes > had + self.rebalancer.spare(below_min=below_min) or time.monotonic() >= until:
                        break
                    self._check_giving()
                    self.rebalancer.ask(nbytes - had, below_min=below_min)
                    giving = [share for share in self.rebalancer.shares if share.owed]
                _wake(giving)
                time.sleep(PAUSE_SECONDS)
        raise ValueError(
            f"{what} needs {format_bytes(nbytes)}, but {format_bytes(self.free)} of {self._whose} budget of "
            f"{format_bytes(self.total)} are free; {self._advice}"
        )

    @contextmanager
    def _no_growth(self) -> Iterator[None]:
        """Let no table grow during the block: memory that is given back is for a reservation."""
        self._reserving.append(None)
        try:
            yield
        finally:
            self._reserving.pop()


class GrowingPart:
    """A part of the budget, of `total` bytes, which grows up to `most` bytes in GROWTH_STEPS steps, and never shrinks.

    more: takes bytes of the budget for it; returns whether they were there.
    """

    def __init__(self, total: int, most: int = 0, more: Callable[[int], bool] = lambda nbytes: False) -> None:
        self.total = total
        self._most, self._step, self._more = most, max(1, (most - total) // GROWTH_STEPS), more

    def grow(self) -> int:
        """Grow by a step, if it may and the budget has the bytes; return how many came. REQUIRES: its own lock."""
        if self.total + self._step > self._most or not self._more(self._step):
            return 0
        self.total += self._step
        return self._step


def _wake(giving: Iterable[Share]) -> None:
    for share in giving:
        share.notify()
        share.wake()
