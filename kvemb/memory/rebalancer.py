"""Rebalancing of a spent budget: memory moves to the hot table in which one more row saves the most misses.

The benefit of a table's memory is marginal: recent uses of its least valuable rows, per byte
(kvemb.memory.marginal_benefit). Tables are compared once a turn, which ends when tables that could not grow have been
offered a certain number of rows. A table is a donor if its benefit is less than half of the best benefit among those
that want to grow. A donor does not grow, and owes some of its bytes. Its variable gives them back at its next call; if
none comes, a background thread does (kvemb.tiers.reclaimer). The budget's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

# Memory moves only to a table whose benefit is more than this factor larger, so that it does not move back and forth.
BAND = 2.0
# Rows offered in a turn: 1/TURN_PART of the cells of all tables, and at least MIN_TURN_ROWS.
TURN_PART, MIN_TURN_ROWS = 16, 1024
# A turn has at least TURN_CALLS calls for each other table in use. In a shorter turn, tables that were not called would
# seem unused, and those whose largest batch was in it much used, so that memory would move back and forth.
TURN_CALLS = 8
# A donor gives 1/GIVEN_PART of its memory in a turn for each factor of two in benefit, at most MAX_GIVEN_PARTS.
GIVEN_PART, MAX_GIVEN_PARTS = 16, 4
# A table gets up to 1/GOTTEN_PART of its memory in a turn, or 1/GOTTEN_OF_ALL of that of all tables if that is more.
GOTTEN_PART, GOTTEN_OF_ALL = 2, 32
# A miss adds this part of a use to the benefit. It decides between tables that record no uses.
MISS_USES = 1 / 64


class Share:
    """The part of a budget that one growing table holds.

    cell_bytes: bytes of a cell. held: bytes of all its cells. min_bytes: bytes that it keeps, unless a variable
    could not be opened otherwise: then this becomes smaller, down to floor, in steps of floor (None: it stays).
    benefit: recent uses per byte; None: not measured yet. owed: bytes that it has to give back. offered: rows offered
    since the last measurement; called: the number of the last call that offered some. due: its benefit has to be
    measured. refused: it wanted to grow in this turn and could not. donor: see the module. notify: called when `owed`
    or `due` is set. wake: called if `due` is still set a turn later, or if a reservation waits. Neither callback may
    block.
    """

    def __init__(self, cell_bytes: int, held: int, min_bytes: int, floor: int | None = None) -> None:
        self.cell_bytes, self.held, self.min_bytes = cell_bytes, held, min_bytes
        self._floor = min_bytes if floor is None else min(floor, min_bytes)
        self.benefit: float | None = None
        self.owed = self.offered = 0
        self.due = self.refused = self.donor = False
        self.called = -(1 << 62)  # never
        self.notify: Callable[[], None] = lambda: None
        self.wake: Callable[[], None] = lambda: None

    def spare(self, *, below_min: bool = False) -> int:
        """Return the bytes that it could still be asked for. below_min: down to its floor instead of min_bytes."""
        return max(0, self.held - self.owed - (self._floor if below_min else self.min_bytes))

    def lower_min(self, nbytes: int) -> None:
        """Lower min_bytes, as far as possible, so that it has nbytes to spare."""
        missing = min(nbytes, self.spare(below_min=True)) - self.spare()
        if missing > 0:
            self.min_bytes = max(self._floor, self.min_bytes - -(-missing // self._floor) * self._floor)

    def ask(self, nbytes: int) -> int:
        """Make it owe nbytes more, at most what it can spare; return by how many bytes its debt grew."""
        more = min(nbytes, self.spare())
        self.owed += more
        return more

    def shrunk(self, nbytes: int) -> None:
        """Record that nbytes were given back. 0: the table cannot shrink further, so its debt is cancelled."""
        self.held -= nbytes
        self.owed = max(0, self.owed - nbytes) if nbytes else 0


class Rebalancer:
    """Decides which shares of one budget shrink and which may grow.

    work: the total number of rows offered so far to tables that could not grow.
    """

    def __init__(self) -> None:
        self.shares: list[Share] = []
        self.work = self._end_of_turn = 0
        self._call = self._first_call = 0

    @property
    def owed(self) -> int:
        """Bytes that shares have been asked for."""
        return sum(share.owed for share in self.shares)

    def available(self, *, below_min: bool = False) -> int:
        """Return the bytes that shares owe, and could be asked for. below_min: as in ask()."""
        return self.owed + sum(share.spare(below_min=below_min) for share in self.shares)

    @property
    def _in_use(self) -> int:
        """How many shares were offered rows by the last calls."""
        return sum(share.called >= self._call - TURN_CALLS * len(self.shares) for share in self.shares)

    def offered(self, share: Share, rows: int) -> list[Share]:
        """Record rows offered to a table that could not grow. Return the shares to notify: all, if this ends a turn."""
        share.offered += rows
        self.work += rows
        share.called, self._call = self._call, self._call + 1
        if self.work < self._end_of_turn or self._call - self._first_call < TURN_CALLS * (self._in_use - 1):
            return []
        cells = sum(share.held // share.cell_bytes for share in self.shares)
        self._end_of_turn, self._first_call = self.work + max(MIN_TURN_ROWS, cells // TURN_PART), self._call
        self._choose_donors()
        return list(self.shares)

    def _choose_donors(self) -> None:
        """Choose the donors, and how much they owe to the shares that want to grow."""
        wanting = [share for share in self.shares if share.refused]
        # A new table counts as the best one until its benefit is measured.
        compared = self.shares if any(share.benefit is None for share in wanting) else wanting
        best = max((share.benefit or 0.0 for share in compared), default=0.0)
        for share in self.shares:
            share.donor = share.benefit is not None and BAND * share.benefit < best
        smallest = sum(share.held for share in self.shares) // GOTTEN_OF_ALL
        needed = sum(max(smallest, share.held // GOTTEN_PART) for share in wanting if not share.donor)
        for share in sorted((share for share in self.shares if share.donor), key=lambda share: share.benefit or 0.0):
            if needed > 0 and not share.owed:
                needed -= share.ask(min(needed, share.held // GIVEN_PART * _parts(share.benefit or 0.0, best)))
        for share in self.shares:
            share.refused = False

    def ask(self, nbytes: int, *, below_min: bool = False) -> list[Share]:
        """Make shares owe nbytes in all, as far as they can, those with the lowest benefit first; return who owes.

        below_min: if they cannot spare that much, they keep less than min_bytes, because a variable could not be
        opened otherwise.
        """
        missing = nbytes - self.owed
        order = sorted(self.shares, key=lambda share: share.benefit or 0.0) if missing > 0 else []
        for below, share in product((False, True) if below_min else (False,), order):
            if missing > 0:
                # At least an eighth, so that memory does not change hands bucket by bucket.
                more = max(missing, share.held // 8)
                if below:
                    share.lower_min(more)
                missing -= share.ask(more)
        return [share for share in self.shares if share.owed]


def _parts(benefit: float, best: float) -> int:
    """Return floor(log2(best / benefit)), at most MAX_GIVEN_PARTS."""
    parts = 0
    while parts < MAX_GIVEN_PARTS and 2 ** (parts + 1) * benefit <= best:
        parts += 1
    return parts
