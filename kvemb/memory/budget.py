"""The budget of one memory, from which hot tables, spill buffers and reads ahead are paid.

Hot cells are reserved; growing tables may be asked to give some back, down to a few (kvemb.memory.rebalancer). Memory
for rows that wait for the disk is leased (kvemb.memory.lease): a lessee takes memory that is unused at the moment, and
gives it back when it is needed elsewhere. Reads ahead go before other lessees, up to most_for_reads: the memory that
they lately had stays theirs as long as reads begin, because a caller waits for a row that was not read in time. Memory
that a hot table gave up for another is not lent until that table has taken it, the turn has ended or a table was
dropped. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from kvemb.memory.lease import Lease
from kvemb.memory.rebalancer import Rebalancer, Share
from kvemb.memory.recent_most import RecentMost
from kvemb.memory.tally import Tally
from kvemb.options import format_bytes
from kvemb.threads.interrupts import uninterrupted

# How long reserve() waits for memory to be given back, and how often it checks.
WAIT_SECONDS, PAUSE_SECONDS = 30.0, 0.002
# Memory that reads ahead had or lacked is kept for them until no read has begun for so long, or no read has needed it
# for twice as long.
IDLE_SECONDS = 10.0


class Budget:
    """`total` bytes of one memory, handed out in reservations.

    set_aside: of these, bytes that are taken from the start. whose, advice: for messages. check_giving: raises an error
    if memory is no longer given back. clock: returns seconds. rebalancer: the hot tables that grow, guarded by the
    budget's lock.
    """

    def __init__(
        self,
        total: int,
        *,
        set_aside: int = 0,
        whose: str = "the store's",
        advice: str = "open the store with a larger memory_budget or ask for less",
        check_giving: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self._whose, self._advice, self._check_giving = whose, advice, check_giving
        self._set_aside = set_aside
        self._free = total - set_aside
        self._promised = 0  # of the free bytes: those that shares gave in this turn for others to grow
        self._lock = threading.Lock()
        self._leases: list[Lease] = []
        self._lent = self._lent_to_reads = 0
        self.pushed_out = Tally()
        self._needed_by_reads = RecentMost(IDLE_SECONDS, clock)  # bytes that reads ahead had or lacked
        self.rebalancer = Rebalancer()

    def add(self, nbytes: int) -> None:
        """Hand out bytes that were set aside. REQUIRES: there is no share yet."""
        with self._lock:
            self._set_aside -= nbytes
            self._free += nbytes

    @property
    def kept_from_growth(self) -> int:
        """Bytes that growing tables leave free for later variables."""
        return self.total // 16

    @property
    def most_for_reads(self) -> int:
        """Bytes for which reads ahead go before growing tables and other leases."""
        return self.total // 8

    @property
    def for_growth(self) -> int:
        """Bytes that one table may grow to if nothing else uses the budget."""
        return self.total - self._set_aside - self.kept_from_growth

    @property
    def free(self) -> int:
        """Bytes that are not reserved, leased ones included."""
        with uninterrupted(), self._lock:
            return self._free + self._lent

    @property
    def unused(self) -> int:
        """Bytes that may be lent: not reserved, leased, given back in this turn for a table, or kept for reads."""
        return max(0, self._free - self._promised - self._kept_for_reads())

    def try_grow(self, nbytes: int) -> bool:
        """Take nbytes for growth, if that leaves kept_from_growth and what is kept for reads free or leased.

        If it would, but lessees hold the memory, they are asked to give it back for a later call. Returns whether it
        was taken.
        """
        with uninterrupted(), self._lock:
            for_reads, kept = self._needed_by_reads.value, self._kept_for_reads()
            grows = nbytes <= self._free + self._lent - max(for_reads, self.kept_from_growth)
            if grows and nbytes <= self._free - kept:
                self._free -= nbytes
                self._promised = max(0, self._promised - nbytes)
                return True
            owing = self._ask(nbytes + kept, self._leases, self._spare_of_reads()) if grows else []
        _notify(owing)
        return False

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
            self._promised = 0  # it may have been for this share, and there may be no further turn

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
        with uninterrupted(), self._lock:
            self._promised += min(nbytes, share.owed)
            share.shrunk(nbytes)
            self._free += nbytes

    # Leased memory.

    def lease(self) -> Lease:
        """Return a new lease, of no bytes yet."""
        lease = Lease(self)
        with uninterrupted(), self._lock:
            self._leases += [lease, lease.reads]
        return lease

    def lend(self, lease: Lease, nbytes: int) -> bool:
        """See Lease.take."""
        if lease.for_reads:
            return self._lend_to_read(lease, nbytes)
        with uninterrupted(), self._lock:
            if lease.owed == 0 and nbytes <= self.unused:
                self._move(lease, nbytes)
                return True
            of_reads = self._spare_of_reads()
            largest = max(self._leases, key=lambda other: other.askable(of_reads))
            fairer = lease.owed == 0 and largest.askable(of_reads) > 2 * (lease.held + nbytes)
            owing = self._ask(nbytes, [largest], of_reads) if fairer else []
        _notify(owing)
        return False

    def _lend_to_read(self, lease: Lease, nbytes: int) -> bool:
        """Do what lend does for a read ahead, which may use what is kept for reads, and what is promised.

        Up to most_for_reads, other lessees are asked for what is not free, and growing tables for what is then less
        than is kept from growth. A read that needs more gets only what nobody uses, and nothing is kept for it.
        """
        with uninterrupted(), self._lock:
            first = self._lent_to_reads + nbytes <= self.most_for_reads
            lent = lease.owed == 0 and nbytes <= self._free - (0 if first else self._promised)
            if lent:
                self._move(lease, nbytes)
                self._promised = min(self._promised, self._free)
            had, lacking = self._needed_by_reads.value, nbytes if first and not lent else 0
            self._needed_by_reads.note(min(self.most_for_reads, self._lent_to_reads + lacking))
            owing = self._ask(nbytes, self._leases, 0) if lacking else []
            needed = self._needed_by_reads.value
            missing = max(needed, self.kept_from_growth) - self._free - self._lent if lacking or needed > had else 0
            giving = self._ask_tables(missing) if missing > 0 else []
        _notify(owing)
        _wake(giving)
        return lent

    def _kept_for_reads(self) -> int:
        """Return the bytes that are kept for reads ahead, without those that they have."""
        return max(0, self._needed_by_reads.value - self._lent_to_reads)

    def _move(self, lease: Lease, nbytes: int) -> None:
        """Move free bytes to a lease; a negative number: back. REQUIRES: the lock."""
        self._free -= nbytes
        lease.held += nbytes
        self._lent += nbytes
        if lease.for_reads:
            self._lent_to_reads += nbytes

    def _spare_of_reads(self) -> int:
        """Return the bytes that reads ahead have beside those that go first, and do not owe. REQUIRES: the lock."""
        most = self._lent_to_reads - self._needed_by_reads.value
        return max(0, most - sum(lease.owed for lease in self._leases if lease.for_reads)) if most > 0 else 0

    def use(self, nbytes: int) -> None:
        """Take nbytes, free or not. Growing tables are asked for what is not free, as far as they can give it."""
        with uninterrupted(), self._lock:
            self._free -= nbytes
            giving = self._ask_tables(-self._free)
        _wake(giving)

    def _ask_tables(self, nbytes: int) -> list[Share]:
        """Make growing tables owe nbytes in all, with what they owe; return those that owe. REQUIRES: the lock."""
        self.rebalancer.ask(nbytes - self.rebalancer.owed)
        return [share for share in self.rebalancer.shares if share.owed]

    def take_back(self, lease: Lease, nbytes: int, *, end: bool = False) -> None:
        """See Lease.give_back; end: see Lease.end."""
        with uninterrupted(), self._lock:
            self._move(lease, -nbytes)
            lease.owed = max(0, lease.owed - nbytes)
            if end:
                self._leases.remove(lease)
                self.pushed_out.note(lease, 0)

    def _ask(self, nbytes: int, lessees: Sequence[Lease], of_reads: int) -> list[Lease]:
        """Make the largest lessees owe what nbytes lack in free memory; return those to notify. REQUIRES: the lock.

        of_reads: the most bytes that reads ahead are asked for.
        """
        owing = []
        missing = nbytes - self._free - sum(lease.owed for lease in self._leases) if self._lent else 0
        for lease in sorted(lessees, key=lambda lease: -lease.held) if missing > 0 else ():
            most = lease.askable(of_reads)
            if missing > 0 and most > 0:
                # At least a quarter, so that memory does not change hands slot by slot.
                more = min(most, max(missing, lease.held // 4))
                lease.owed += more
                missing -= more
                of_reads -= more if lease.for_reads else 0
                owing.append(lease)
        return owing

    def give_back(self, nbytes: int) -> None:
        """Free nbytes that were reserved."""
        with uninterrupted(), self._lock:
            self._free += nbytes

    def reserve(self, nbytes: int, what: str, *, below_min: bool = False) -> None:
        """Reserve nbytes, after waiting for lessees and growing tables to give them back. Raises ValueError.

        what: what they are for, in the message. below_min: if necessary, tables shrink below their min_bytes, so that
        variables that were open together can be opened again in any order. Raises what check_giving raises, instead of
        waiting.
        """
        until = time.monotonic() + WAIT_SECONDS
        while True:
            with uninterrupted(), self._lock:
                if nbytes <= self._free:
                    self._free -= nbytes
                    self._promised = min(self._promised, self._free)
                    return
                had = self._free + self._lent + self.rebalancer.owed
                if nbytes > had + self.rebalancer.spare(below_min=below_min) or time.monotonic() >= until:
                    break
                self._check_giving()
                self._ask(nbytes, self._leases, self._lent_to_reads)
                owing = [lease for lease in self._leases if lease.owed]
                self.rebalancer.ask(nbytes - had, below_min=below_min)
                giving = [share for share in self.rebalancer.shares if share.owed]
            _notify(owing)
            _wake(giving)
            time.sleep(PAUSE_SECONDS)
        raise ValueError(
            f"{what} needs {format_bytes(nbytes)}, but {format_bytes(self.free)} of {self._whose} budget of "
            f"{format_bytes(self.total)} are free; {self._advice}"
        )


def _notify(owing: Iterable[Lease]) -> None:
    for lease in owing:
        lease.notify()


def _wake(giving: Iterable[Share]) -> None:
    for share in giving:
        share.notify()
        share.wake()
