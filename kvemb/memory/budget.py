"""The budget of one memory, from which hot tables, spill buffers and reads ahead are paid.

Hot cells are reserved; growing tables may be asked to give some back, down to a few (kvemb.memory.rebalancer). Memory
for rows that wait for the disk is leased: a lessee takes memory that is unused at the moment, and gives it back when it
is needed elsewhere. Memory that a hot table gave up for another is not lent until that table has taken it, the turn has
ended or a table was dropped. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from kvemb.memory.rebalancer import Rebalancer, Share
from kvemb.options import format_bytes

# How long reserve() waits for memory to be given back, and how often it checks.
WAIT_SECONDS, PAUSE_SECONDS = 30.0, 0.002


class Budget:
    """`total` bytes of one memory, handed out in reservations.

    set_aside: of these, bytes that are taken from the start. whose, advice: for messages. check_giving: raises an error
    if memory is no longer given back. rebalancer: the hot tables that grow, guarded by the budget's lock.
    """

    def __init__(
        self,
        total: int,
        *,
        set_aside: int = 0,
        whose: str = "the store's",
        advice: str = "open the store with a larger memory_budget or ask for less",
        check_giving: Callable[[], None] = lambda: None,
    ) -> None:
        self.total = total
        self._whose, self._advice, self._check_giving = whose, advice, check_giving
        self._set_aside = set_aside
        self._free = total - set_aside
        self._promised = 0  # of the free bytes: those that shares gave in this turn for others to grow
        self._lock = threading.Lock()
        self._leases: list[Lease] = []
        self.rebalancer = Rebalancer()

    @property
    def kept_from_growth(self) -> int:
        """Bytes that growing tables leave free for later variables."""
        return self.total // 16

    @property
    def for_growth(self) -> int:
        """Bytes that one table may grow to if nothing else uses the budget."""
        return self.total - self._set_aside - self.kept_from_growth

    @property
    def free(self) -> int:
        """Bytes that are not reserved, leased ones included."""
        with self._lock:
            return self._free + self._leased()

    @property
    def unused(self) -> int:
        """Bytes that may be lent: neither reserved nor leased, nor given back in this turn for a table to grow."""
        return max(0, self._free - self._promised)

    def try_grow(self, nbytes: int) -> bool:
        """Take nbytes for growth, if that leaves kept_from_growth free or leased.

        If it would, but lessees hold the memory, they are asked to give it back for a later call. Returns whether it
        was taken.
        """
        with self._lock:
            if nbytes <= self._free and nbytes <= self._free + self._leased() - self.kept_from_growth:
                self._free -= nbytes
                self._promised = max(0, self._promised - nbytes)
                return True
            owing = self._ask(nbytes) if nbytes <= self._free + self._leased() - self.kept_from_growth else []
        _notify(owing)
        return False

    # The hot tables that grow (kvemb.memory.rebalancer).

    @property
    def work(self) -> int:
        """The number of rows ever offered to tables that could not grow."""
        return self.rebalancer.work

    def join(self, share: Share) -> None:
        """Add a share, whose memory is reserved; from now on it may grow and be asked to give memory back."""
        with self._lock:
            self.rebalancer.shares.append(share)

    def leave(self, share: Share) -> None:
        """Remove a share and free what it holds."""
        with self._lock:
            self.rebalancer.shares.remove(share)
            self._free += share.held
            self._promised = 0  # it may have been for this share, and there may be no further turn

    def grow(self, share: Share, nbytes: int) -> bool:
        """Take nbytes for a share as try_grow does, unless others need memory more; return whether they were taken."""
        if share.owed or share.donor or not self.try_grow(nbytes):
            share.refused = True
            return False
        with self._lock:
            share.held += nbytes
        return True

    def offered(self, share: Share, rows: int) -> None:
        """Record that rows were offered to a share that could not grow; this may end the turn."""
        with self._lock:
            called = self.rebalancer.offered(share, rows)
            if called:
                self._promised = 0
            late = [other for other in called if other.due]
            for other in called:
                other.due = True
        for other in called:
            other.notify()
        for other in late:
            other.wake()

    def shrink(self, share: Share, nbytes: int) -> None:
        """Free nbytes that a share has given back; 0: it can give no more."""
        with self._lock:
            self._promised += min(nbytes, share.owed)
            share.shrunk(nbytes)
            self._free += nbytes

    # Leased memory.

    def lease(self) -> Lease:
        """Return a new lease, of no bytes yet."""
        lease = Lease(self)
        with self._lock:
            self._leases.append(lease)
        return lease

    def lend(self, lease: Lease, nbytes: int) -> bool:
        """See Lease.take."""
        with self._lock:
            if lease.owed == 0 and nbytes <= self.unused:
                self._free -= nbytes
                lease.held += nbytes
                return True
            largest = max(self._leases, key=lambda other: other.held - other.owed)
            fairer = lease.owed == 0 and largest.held - largest.owed > 2 * (lease.held + nbytes)
            owing = self._ask(nbytes, [largest]) if fairer else []
        _notify(owing)
        return False

    def use(self, nbytes: int) -> None:
        """Take nbytes, free or not. Growing tables are asked for what is not free, as far as they can give it."""
        with self._lock:
            self._free -= nbytes
            self.rebalancer.ask(-self._free - self.rebalancer.owed)
            giving = [share for share in self.rebalancer.shares if share.owed]
        for share in giving:
            share.notify()
            share.wake()

    def take_back(self, lease: Lease, nbytes: int, *, end: bool = False) -> None:
        """See Lease.give_back; end: see Lease.end."""
        with self._lock:
            self._free += nbytes
            lease.held -= nbytes
            lease.owed = max(0, lease.owed - nbytes)
            if end:
                self._leases.remove(lease)

    def _leased(self) -> int:
        return sum(lease.held for lease in self._leases)

    def _ask(self, nbytes: int, lessees: Sequence[Lease] | None = None) -> list[Lease]:
        """Make the largest lessees owe what nbytes lack in free memory; return those to notify. REQUIRES: the lock."""
        owing = []
        missing = nbytes - self._free - sum(lease.owed for lease in self._leases)
        for lease in sorted(self._leases if lessees is None else lessees, key=lambda lease: -lease.held):
            if missing > 0 and lease.held > lease.owed:
                # At least a quarter, so that memory does not change hands slot by slot.
                more = min(lease.held - lease.owed, max(missing, lease.held // 4))
                lease.owed += more
                missing -= more
                owing.append(lease)
        return owing

    def give_back(self, nbytes: int) -> None:
        """Free nbytes that were reserved."""
        with self._lock:
            self._free += nbytes

    def reserve(self, nbytes: int, what: str, *, below_min: bool = False) -> None:
        """Reserve nbytes, after waiting for lessees and growing tables to give them back. Raises ValueError.

        what: what they are for, in the message. below_min: if necessary, tables shrink below their min_bytes, so that
        variables that were open together can be opened again in any order. Raises what check_giving raises, instead of
        waiting.
        """
        until = time.monotonic() + WAIT_SECONDS
        while True:
            with self._lock:
                if nbytes <= self._free:
                    self._free -= nbytes
                    self._promised = min(self._promised, self._free)
                    return
                had = self._free + self._leased() + self.rebalancer.owed
                if nbytes > had + self.rebalancer.spare(below_min=below_min) or time.monotonic() >= until:
                    break
                self._check_giving()
                self._ask(nbytes)
                owing = [lease for lease in self._leases if lease.owed]
                self.rebalancer.ask(nbytes - had, below_min=below_min)
                giving = [share for share in self.rebalancer.shares if share.owed]
            _notify(owing)
            for share in giving:
                share.notify()
                share.wake()
            time.sleep(PAUSE_SECONDS)
        raise ValueError(
            f"{what} needs {format_bytes(nbytes)}, but {format_bytes(self.free)} of {self._whose} budget of "
            f"{format_bytes(self.total)} are free; {self._advice}"
        )


class Lease:
    """Memory of a budget that its holder gives back on demand. held: its bytes. owed: bytes of these asked back.

    notify: a callback set by the holder, called on any thread when the lease owes memory. It must not block.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.held = self.owed = 0
        self.notify: Callable[[], None] = lambda: None

    @property
    def most(self) -> int:
        """The most bytes that it may ever hold."""
        return self._budget.total

    @property
    def available(self) -> int:
        """The most bytes that take() would grant now."""
        return 0 if self.owed else self._budget.unused

    def take(self, nbytes: int) -> bool:
        """Take nbytes if they are free and nothing is owed; return whether they were taken.

        If not, a lessee that holds much more is asked to give memory back.
        """
        return self._budget.lend(self, nbytes)

    def give_back(self, nbytes: int) -> None:
        """Free nbytes of those held."""
        self._budget.take_back(self, nbytes)

    def end(self) -> None:
        """Give everything back. The lease must not be used afterwards."""
        self._budget.take_back(self, self.held, end=True)


def _notify(owing: Iterable[Lease]) -> None:
    for lease in owing:
        lease.notify()
