"""Which hot tables give memory, and which get it, once a budget is spent: a row more where it saves the most misses.

What a cell is worth to a table is the share of its least valuable rows that were used lately (kvemb.tiers.worth), per
byte. Work goes in turns: after so many rows were offered to tables that could not grow, a table whose cells are worth
less than half of the best one's among these owes some of them, and does not grow. Its variable pays at its next call,
or, if there is none, a thread does (kvemb.tiers.giving). The budget's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Callable

# Cells move to a table where they are worth so many times as much.
BAND = 2.0
# A turn: rows offered, as a part of the rows that all tables hold, and at least.
TURN_PART, LEAST_TURN_ROWS = 16, 1024
# What a table may give in a turn for each doubling of the difference in worth, as a part of its own, and at most.
GIVEN_PART, MOST_GIVEN_PARTS = 16, 4
# What a table may get in a turn: a part of its own, and of all.
GOTTEN_PART, GOTTEN_OF_ALL = 2, 32
# Of a miss, as a use of a cell: decides where no uses are recorded.
MISS_WORTH = 1 / 64


class Share:
    """What one growing table has of a budget, and what is known of it.

    cell_bytes: of a cell. held: bytes of its cells. least: bytes that it keeps. worth: of a byte, None: not known yet.
    owed: bytes to give back. due: worth is to be measured. tell: called when either is new; it must not wait. urge:
    called when nobody has done it since; it must not wait either.
    """

    def __init__(self, cell_bytes: int, held: int, least: int) -> None:
        self.cell_bytes, self.held, self.least = cell_bytes, held, least
        self.worth: float | None = None
        self.owed = self.offered = 0
        self.due = self.refused = self.poor = False
        self.tell: Callable[[], None] = lambda: None
        self.urge: Callable[[], None] = lambda: None

    @property
    def spare(self) -> int:
        """Bytes that it could still be asked for."""
        return max(0, self.held - self.owed - self.least)

    def ask(self, nbytes: int) -> int:
        """Have it owe nbytes more, or what it can spare; returns how many."""
        more = min(nbytes, self.spare)
        self.owed += more
        return more

    def gave(self, nbytes: int) -> None:
        """It has nbytes less; 0: it can give no more."""
        self.held -= nbytes
        self.owed = max(0, self.owed - nbytes) if nbytes else 0


class Sharing:
    """The shares in one budget. work: rows that were offered to tables that could not grow, ever."""

    def __init__(self) -> None:
        self.shares: list[Share] = []
        self.work = self._end_of_turn = 0

    @property
    def spare(self) -> int:
        """Bytes that shares could be asked for."""
        return sum(share.spare for share in self.shares)

    @property
    def owed(self) -> int:
        """Bytes that shares have been asked for."""
        return sum(share.owed for share in self.shares)

    def offered(self, share: Share, rows: int) -> list[Share]:
        """Rows were offered to a table that could not grow. Returns which shares to tell, and urge where still due."""
        share.offered += rows
        self.work += rows
        if self.work < self._end_of_turn:
            return []
        cells = sum(share.held // share.cell_bytes for share in self.shares)
        self._end_of_turn = self.work + max(LEAST_TURN_ROWS, cells // TURN_PART)
        self._judge()
        return list(self.shares)

    def _judge(self) -> None:
        """Decide which shares are poor, and what they owe for the others that want memory."""
        wanting = [share for share in self.shares if share.refused]
        # A table that is new is worth as much as the best one, until that is known.
        compared = self.shares if any(share.worth is None for share in wanting) else wanting
        best = max((share.worth or 0.0 for share in compared), default=0.0)
        for share in self.shares:
            share.poor = share.worth is not None and BAND * share.worth < best
        least = sum(share.held for share in self.shares) // GOTTEN_OF_ALL
        needed = sum(max(least, share.held // GOTTEN_PART) for share in wanting if not share.poor)
        for share in sorted((share for share in self.shares if share.poor), key=lambda share: share.worth or 0.0):
            if needed > 0 and not share.owed:
                needed -= share.ask(min(needed, share.held // GIVEN_PART * _parts(share.worth or 0.0, best)))
        for share in self.shares:
            share.refused = False

    def ask(self, nbytes: int) -> None:
        """Have shares owe nbytes, those that are worth least first."""
        for share in sorted(self.shares, key=lambda share: share.worth or 0.0):
            if nbytes > 0 and share.spare:
                # At least an eighth, so that memory does not change hands bucket by bucket.
                nbytes -= share.ask(max(nbytes, share.held // 8))


def _parts(worth: float, best: float) -> int:
    """Return how many parts a share gives in a turn: one for each doubling from its worth to the best one's."""
    parts = 0
    while parts < MOST_GIVEN_PARTS and 2 ** (parts + 1) * worth <= best:
        parts += 1
    return parts
