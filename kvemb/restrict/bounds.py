"""The bounds of a table: how many rows it may have, and how long a row may stay unchanged. Frozen values.

A row has the step of its last change, not the time. So the times at which the variable's step had some values are kept,
INTERVALS of them in one time to live: a row whose step is less than that of an age was last changed before that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from kvemb.checks.fields import integer, number
from kvemb.checks.numeric import as_float, as_int
from kvemb.checks.ranges import END_OF_TIME, MAX_ROWS, MAX_STEPS

# A table is restricted when it has this part more rows than its bound.
MARGIN = 16
INTERVALS = 32


@dataclass(frozen=True)
class Bounds:
    """What a table is restricted to in the background. None: no bound.

    max_rows: how many rows. ttl: the seconds after which a row that did not change is removed.
    """

    max_rows: int | None = None
    ttl: float | None = None

    @classmethod
    def given(cls, max_rows: object, ttl: object) -> Bounds:
        """Return the bounds of these arguments. Raises TypeError, ValueError."""
        return cls(
            None if max_rows is None else as_int(max_rows, "max_rows", 1, MAX_ROWS),
            None if ttl is None else as_float(ttl, "ttl", above=0, hint="it is in seconds; a day has 86400"),
        )

    def of_shard(self, shards: int) -> Bounds:
        """Return the bounds of one of so many shards, over which hashing spreads the rows evenly."""
        return self if self.max_rows is None else Bounds(max(1, self.max_rows // shards), self.ttl)

    def are_exceeded(self, rows: int) -> bool:
        """Whether a table of so many rows is to be restricted to max_rows."""
        return self.exceeded_margins(rows) > 1

    def exceeded_margins(self, rows: int) -> float:
        """Return by how many margins a table of so many rows exceeds max_rows; at most 0 if it does not."""
        if self.max_rows is None:
            return 0.0
        return (rows - self.max_rows) / max(self.max_rows / MARGIN, 0.5)


@dataclass(frozen=True)
class Age:
    """A time, in seconds since 1970, and the step of the variable's next change then; its rows had earlier ones."""

    seconds: Annotated[float, number(0, END_OF_TIME)]
    step: Annotated[int, integer(0, MAX_STEPS)]


Ages = tuple[Age, ...]  # ascending


def is_due(ages: Ages, now: float, ttl: float) -> bool:
    """Whether the present age is to be noted, if rows have changed since the last one."""
    return not ages or now - ages[-1].seconds >= ttl / INTERVALS


def expired_before(ages: Ages, now: float, ttl: float) -> tuple[int, Ages]:
    """Return the step before which rows have expired, and the ages that are younger. Without such an age it is 0."""
    old = sum(age.seconds <= now - ttl for age in ages)
    return (ages[old - 1].step if old else 0), ages[old:]
