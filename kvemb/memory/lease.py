"""A lease: memory of a budget that is lent, and given back when it is needed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvemb.memory.tally import Tally


class Lender(Protocol):
    """What lends the memory: kvemb.memory.budget.Budget.

    total: its bytes. pushed_out: for each lessee, the bytes of the rows that one lookup makes hot and pushes out again.
    """

    total: int
    pushed_out: Tally

    @property
    def unused(self) -> int:
        """See Budget.unused."""

    def lend(self, lease: Lease, nbytes: int) -> bool:
        """See Lease.take."""

    def take_back(self, lease: Lease, nbytes: int, *, end: bool = False) -> None:
        """See Lease.give_back. end: see Lease.end."""


class Lease:
    """Memory of a budget that its holder gives back on demand. held: its bytes. owed: bytes of these asked back.

    for_reads: whether it is for reads ahead, which go before other lessees. reads: the holder's lease for reads ahead,
    unless this is one; it ends with this one.
    notify: a callback set by the holder, called on any thread when the lease owes memory. It must not block.
    """

    reads: Lease

    def __init__(self, budget: Lender, *, for_reads: bool = False) -> None:
        self.budget, self.for_reads = budget, for_reads
        if not for_reads:
            self.reads = Lease(budget, for_reads=True)
        self.held = self.owed = 0
        self.notify: Callable[[], None] = lambda: None

    @property
    def available(self) -> int:
        """The most bytes that take() would grant now, unless it is for reads."""
        return 0 if self.owed else self.budget.unused

    def askable(self, of_reads: int) -> int:
        """Return the bytes that it may be asked for. of_reads: the most that reads ahead are asked for."""
        return min(self.held - self.owed, of_reads) if self.for_reads else self.held - self.owed

    def take(self, nbytes: int) -> bool:
        """Take nbytes if they are free and nothing is owed; return whether they were taken.

        If not, a lessee that holds much more is asked to give memory back; for reads, other lessees and growing tables.
        """
        return self.budget.lend(self, nbytes)

    def give_back(self, nbytes: int) -> None:
        """Free nbytes of those held."""
        self.budget.take_back(self, nbytes)

    def end(self) -> None:
        """Give everything back. The lease must not be used afterwards."""
        self.budget.take_back(self, self.held, end=True)
        if not self.for_reads:
            self.reads.end()
