"""What hot tables, spill buffers and caches may take of each memory: a budget for the host, and one for each device.

Hot cells are reserved; those of tables that grow may be asked back, down to a few (kvemb.tiers.sharing). What waits for
the disk is leased: a lessee takes memory that is unused at the moment, and gives it back when it is needed elsewhere.
What a hot table gave for another is not lent until it was asked for, or the turn has ended. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from kvemb.contracts import HOST, Memory
from kvemb.options import format_bytes
from kvemb.tiers.sharing import Share, Sharing

# How long reserve() waits for those who are to give memory, and how often it looks.
WAIT_SECONDS, PAUSE_SECONDS = 30.0, 0.002


class Budget:
    """`total` bytes of one memory, handed out in reservations.

    set_aside: of these, bytes that others have from the start. whose, advice: for messages. sharing: hot tables that
    grow; the budget's own lock guards it.
    """

    def __init__(
        self,
        total: int,
        *,
        set_aside: int = 0,
        whose: str = "the store's",
        advice: str = "open the store with a larger memory_budget or ask for less",
    ) -> None:
        self.total = total
        self._whose, self._advice = whose, advice
        self._set_aside = set_aside
        self._free = total - set_aside
        self._promised = 0  # of what is free: bytes that shares gave in this turn, for others to grow
        self._lock = threading.Lock()
        self._leases: list[Lease] = []
        self.sharing = Sharing()

    @property
    def kept_from_growth(self) -> int:
        """Bytes that growing tables leave free for later variables."""
        return self.total // 16

    @property
    def for_growth(self) -> int:
        """Bytes that one table may grow to, if nobody else has any."""
        return self.total - self._set_aside - self.kept_from_growth

    @property
    def free(self) -> int:
        """Bytes nobody has reserved; leased ones are among them."""
        with self._lock:
            return self._free + self._leased()

    @property
    def unused(self) -> int:
        """Bytes that are neither reserved nor leased."""
        return self._free

    def try_grow(self, nbytes: int) -> bool:
        """Take nbytes for growth, if that leaves kept_from_growth free or leased.

        If it would, but lessees have the memory, they are asked for it, and a later call finds it.
        """
        with self._lock:
            if nbytes <= self._free and nbytes <= self._free + self._leased() - self.kept_from_growth:
                self._free -= nbytes
                self._promised = max(0, self._promised - nbytes)
                return True
            owing = self._ask(nbytes) if nbytes <= self._free + self._leased() - self.kept_from_growth else []
        _notify(owing)
        return False

    # The hot tables that grow (kvemb.tiers.sharing).

    @property
    def work(self) -> int:
        """Rows that were offered to tables that could not grow, ever."""
        return self.sharing.work

    def join(self, share: Share) -> None:
        """From now on this share, whose memory is reserved, may grow and be asked to give."""
        with self._lock:
            self.sharing.shares.append(share)

    def leave(self, share: Share) -> None:
        """Free what the share holds. It is not used after."""
        with self._lock:
            self.sharing.shares.remove(share)
            self._free += share.held

    def grow(self, share: Share, nbytes: int) -> bool:
        """Take nbytes for a share as try_grow does, unless others need memory more."""
        if share.owed or share.poor or not self.try_grow(nbytes):
            share.refused = True
            return False
        with self._lock:
            share.held += nbytes
        return True

    def offered(self, share: Share, rows: int) -> None:
        """Rows were offered to a share that could not grow: memory may be needed there."""
        with self._lock:
            called = self.sharing.offered(share, rows)
            if called:
                self._promised = 0
            late = [other for other in called if other.due]
            for other in called:
                other.due = True
        for other in called:
            other.notify()
        for other in late:
            other.wake()

    def gave(self, share: Share, nbytes: int) -> None:
        """Free nbytes of what a share holds; 0: it can give no more."""
        with self._lock:
            self._promised += min(nbytes, share.owed)
            share.gave(nbytes)
            self._free += nbytes

    # Memory that is lent.

    def lease(self) -> Lease:
        """Return a new lease, of no bytes yet."""
        lease = Lease(self)
        with self._lock:
            self._leases.append(lease)
        return lease

    def lend(self, lease: Lease, nbytes: int) -> bool:
        """Lease.take."""
        with self._lock:
            if lease.owed == 0 and nbytes <= self._free - self._promised:
                self._free -= nbytes
                lease.held += nbytes
                return True
            largest = max(self._leases, key=lambda other: other.held - other.owed)
            fairer = lease.owed == 0 and largest.held - largest.owed > 2 * (lease.held + nbytes)
            owing = self._ask(nbytes, [largest]) if fairer else []
        _notify(owing)
        return False

    def use(self, nbytes: int) -> None:
        """Take nbytes, free or not. Growing tables owe what is not free, as far as they can give it."""
        with self._lock:
            self._free -= nbytes
            self.sharing.ask(-self._free - self.sharing.owed)
            giving = [share for share in self.sharing.shares if share.owed]
        for share in giving:
            share.notify()
            share.wake()

    def take_back(self, lease: Lease, nbytes: int, *, end: bool = False) -> None:
        """Lease.give_back, or end."""
        with self._lock:
            self._free += nbytes
            lease.held -= nbytes
            lease.owed = max(0, lease.owed - nbytes)
            if end:
                self._leases.remove(lease)

    def _leased(self) -> int:
        return sum(lease.held for lease in self._leases)

    def _ask(self, nbytes: int, lessees: Sequence[Lease] | None = None) -> list[Lease]:
        """Have the largest lessees owe what is not free of nbytes. Returns those to notify. REQUIRES: the lock."""
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
        """Free what was reserved."""
        with self._lock:
            self._free += nbytes

    def reserve(self, nbytes: int, what: str) -> None:
        """Take nbytes, or raise ValueError saying for what. Waits for lessees and growing tables that have it."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            with self._lock:
                if nbytes <= self._free:
                    self._free -= nbytes
                    self._promised = min(self._promised, self._free)
                    return
                had = self._free + self._leased() + self.sharing.owed
                if nbytes > had + self.sharing.spare or time.monotonic() >= until:
                    break
                self._ask(nbytes)
                owing = [lease for lease in self._leases if lease.owed]
                self.sharing.ask(nbytes - had)
                giving = [share for share in self.sharing.shares if share.owed]
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
    """Memory of a budget that its holder gives back on demand. held: bytes; owed: of these, bytes asked back.

    pay: set by the holder; called, on any thread, when the lease owes memory. It must not wait.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.held = self.owed = 0
        self.pay: Callable[[], None] = lambda: None

    @property
    def most(self) -> int:
        """Bytes that it may ever hold."""
        return self._budget.total

    @property
    def available(self) -> int:
        """Bytes that take() would give now."""
        return 0 if self.owed else self._budget.unused

    def take(self, nbytes: int) -> bool:
        """Take nbytes if they are free and nothing is owed; if not, a lessee that has much more is asked for them."""
        return self._budget.lend(self, nbytes)

    def give_back(self, nbytes: int) -> None:
        """Free nbytes of what is held."""
        self._budget.take_back(self, nbytes)

    def end(self) -> None:
        """Give everything back. The lease is not used after."""
        self._budget.take_back(self, self.held, end=True)


def _notify(owing: Iterable[Lease]) -> None:
    for lease in owing:
        lease.pay()


class Budgets:
    """The budgets of one store. memory_budget: bytes of the host's.

    The cold store's share of the host's is set aside first: an eighth, at most 128 MiB, for its memtables; and another
    eighth, for as much more memtables if its files are mapped, else for filters and indexes: half of it for those held
    whole, and half for the block cache (backends/rocks_options.py).
    device_memory: bytes of each device's; None: as many as its tables say (contracts.HotTable.memory).
    """

    def __init__(self, memory_budget: int, device_memory: int | None = None) -> None:
        self._device_memory = device_memory
        self.cache_bytes = memory_budget // 8
        self.write_buffer_bytes = min(128 << 20, memory_budget // 8)
        self.host = Budget(memory_budget, set_aside=self.cache_bytes + self.write_buffer_bytes)
        self._of_device: dict[str, Budget] = {}
        self._lock = threading.Lock()

    def of(self, memory: Memory) -> Budget:
        """Return the budget of a memory: the same one each time."""
        if memory == HOST:
            return self.host
        with self._lock:
            if memory.name not in self._of_device:
                advice = "ask for less, or for rows on another device too"
                total = memory.nbytes if self._device_memory is None else self._device_memory
                self._of_device[memory.name] = Budget(total, whose=f"{memory.name}'s", advice=advice)
            return self._of_device[memory.name]
