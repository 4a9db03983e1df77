"""Counts and times of a variable's work since it was opened."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from kvemb.options import format_bytes, format_count

# Names of a variable's tiers: the host's memory, and rows that are in the cold store only.
HOST, DISK = "host", "disk"
# What the name of a field of Stats begins with if it is a size, which can shrink; all others only grow.
_SIZES = ("rows", "bytes", "tiers")


def is_size(name: str) -> bool:
    """Whether a field of Stats, by its name, is a size. Otherwise it is a count or a time, and only grows."""
    return name.partition("_")[0] in _SIZES


@dataclass(frozen=True)
class TierSize:
    """Hold the size of one tier of a variable.

    Attributes:
        rows: Rows in the tier.
        cells: Cells for them; 0 on disk.
        nbytes: Bytes that the cells take; on disk, those of the rows.
    """

    rows: int = 0
    cells: int = 0
    nbytes: int = 0

    def __add__(self, other: TierSize) -> TierSize:
        return TierSize(self.rows + other.rows, self.cells + other.cells, self.nbytes + other.nbytes)


@dataclass
class Stats:
    """Hold the counts of a variable's work since it was opened.

    They are updated under the variable's lock, with two exceptions. The one writing thread updates ``cold_writes`` and
    ``seconds_cold_write``. A thread that has read cold rows updates ``cold_reads`` and ``seconds_cold_read``, under a
    lock for these alone. Two ``Stats`` can be added.

    Attributes:
        hits: Keys looked up whose row was hot.
        misses: Keys looked up whose row was not hot. During a lookup, its absent keys are counted here.
        absent: Keys looked up that had no row. ``hits + misses + absent`` is the number of keys looked up.
        refused: Gradients of keys to which an ``Admission`` has not yet given a row.
        promotions: Rows offered to the hot tier, cold ones and new ones.
        cold_reads: Rows that calls and reads ahead read from the cold store. A key without a row there is not counted.
        cold_writes: Rows written to the cold store, removals included: those that left the hot tier, and those of
            checkpoints and flushes.
        rows: Rows in both tiers.
        rows_hot: Rows in the hot tier.
        rows_waiting: Rows in memtables, removals included. A key's rows count each.
        bytes_hot: Bytes of the hot tier.
        bytes_cold: Bytes of the cold store.
        bytes_sightings: Bytes of the counters of an ``Admission``.
        seconds_lookup: Wall-clock time of lookups.
        seconds_update: Wall-clock time of updates.
        seconds_cold_read: Wall-clock time of reading the cold store.
        seconds_cold_write: Wall-clock time of writing the cold store.
        tiers: The size of each tier, by name: ``"gpu:0"``, ``"host"``, ``"disk"``. A row is counted in one tier only,
            so a hot row does not count for ``"disk"``.

    Example:
        ``later - earlier`` has what was counted in between, and the sizes of ``later``:

        >>> earlier = users.stats
        >>> rows = users.lookup([1, 2, 3, 99])
        >>> between = users.stats - earlier
        >>> between.hits, between.absent, between.hit_rate, between.rows
        (3, 1, 1.0, 3)
    """

    hits: int = 0
    misses: int = 0
    absent: int = 0
    refused: int = 0
    promotions: int = 0
    cold_reads: int = 0
    cold_writes: int = 0
    rows: int = 0
    rows_hot: int = 0
    rows_waiting: int = 0
    bytes_hot: int = 0
    bytes_cold: int = 0
    bytes_sightings: int = 0
    seconds_lookup: float = 0.0
    seconds_update: float = 0.0
    seconds_cold_read: float = 0.0
    seconds_cold_write: float = 0.0
    tiers: dict[str, TierSize] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """``hits / (hits + misses)``; 0 before the first hit or miss.

        Absent keys do not count, because no size of the hot tier would make them hits.
        """
        return self.hits / max(1, self.hits + self.misses)

    @property
    def hit_rate_in_words(self) -> str:
        """The hit rate as text, such as "hit rate 75.0%", or "no row looked up yet"."""
        return f"hit rate {self.hit_rate:.1%}" if self.hits + self.misses else "no row looked up yet"

    @property
    def hot(self) -> str:
        """The number of hot rows as text; by device, if some are on a GPU."""
        gpus = sorted(name for name in self.tiers if name not in (HOST, DISK))
        if not gpus:
            return f"{self.rows_hot:,} hot in {format_bytes(self.bytes_hot)}"
        parts = [(f"hot on {name}", self.tiers[name]) for name in gpus]
        parts += [("in the host's memory", self.tiers[HOST])] if HOST in self.tiers else []
        return ", ".join(f"{each.rows:,} {where} in {format_bytes(each.nbytes)}" for where, each in parts)

    def as_dict(self) -> dict[str, Any]:
        """Return every count by name, for a log or a dashboard.

        Returns:
            A new dict, ``hit_rate`` included; ``tiers`` is a dict of dicts.

        Example:
            >>> users.stats.as_dict()["rows"]
            3
        """
        return {**asdict(self), "hit_rate": self.hit_rate}

    def __add__(self, other: Stats) -> Stats:
        numbers = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "tiers"}
        names = {**self.tiers, **other.tiers}
        tiers = {name: self.tiers.get(name, TierSize()) + other.tiers.get(name, TierSize()) for name in names}
        return Stats(**numbers, tiers=tiers)

    def __sub__(self, earlier: Stats) -> Stats:
        grown = {f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self) if not is_size(f.name)}
        return replace(self, **grown, tiers=dict(self.tiers))

    def __str__(self) -> str:
        return (
            f"{format_count(self.rows, 'row')}: {self.hot}, {format_bytes(self.bytes_cold)} cold\n"
            f"{self.hit_rate_in_words}: hits {self.hits:,}, misses {self.misses:,}; absent keys {self.absent:,}\n"
            + (f"refused gradients {self.refused:,}\n" if self.bytes_sightings else "")
            + f"promotions {self.promotions:,}, cold reads {self.cold_reads:,}, cold writes {self.cold_writes:,}, "
            f"waiting {self.rows_waiting:,}\n"
            f"seconds: lookups {self.seconds_lookup:.2f}, updates {self.seconds_update:.2f}, "
            f"cold reads {self.seconds_cold_read:.2f}, cold writes {self.seconds_cold_write:.2f}"
        )

    def timed(self, what: str) -> Timed:
        """Add the seconds that a ``with`` block takes to a field.

        Args:
            what: The end of the field's name, such as ``"lookup"`` for ``seconds_lookup``.

        Returns:
            The context manager.
        """
        return Timed(self, f"seconds_{what}")


class Timed:
    """The block of Stats.timed()."""

    __slots__ = ("_field", "_start", "_stats")

    def __init__(self, stats: Stats, field: str) -> None:
        self._stats, self._field = stats, field

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *failure: object) -> None:
        seconds = time.perf_counter() - self._start
        setattr(self._stats, self._field, getattr(self._stats, self._field) + seconds)
