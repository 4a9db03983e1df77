"""Figures for TensorBoard: sizes as they are, and of counts what they grew by in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from kvemb.checks.brief import brief
from kvemb.errors import KvembError
from kvemb.monitoring.figures import OF_STATS, OF_TIER
from kvemb.stats import Stats
from kvemb.threads.interrupts import uninterrupted


class ScalarWriter(Protocol):
    """What a Scalars writes to: torch.utils.tensorboard's SummaryWriter, tensorboardX's, or your own."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object:
        """Take a figure of a step."""


class Counted(Protocol):
    """What a Scalars reads: a store or a variable, also of a cluster."""

    @property
    def stats(self) -> Stats:
        """Counts since the opening."""


def check_source(source: Counted) -> Stats:
    """Return the counts of a source. Raises TypeError if it is none, and what `source.stats` raises."""
    if not isinstance(stats := getattr(source, "stats", None), Stats):
        raise TypeError(f"source must be a store or a variable, got {brief(source)}")
    return stats


class Scalars:
    """Writes the figures of a store or a variable to TensorBoard, whenever you call write().

    Sizes, such as `rows_hot`, are written as they are. Counts become rates since the call before: `hits` becomes
    `kvemb/hits_per_second`, and `seconds_lookup` becomes `kvemb/lookup_seconds_per_second`, the share of the time that
    was spent in lookups (above 1 if several threads look up). Two more figures are ratios of the same interval:
    `kvemb/hit_rate` and `kvemb/cold_read_seconds_per_miss`. They are left out if no row was looked up, or none missed.
    The first call takes its rates from the moment at which the object was made. Thread-safe.

    Args:
        writer: An object with a method `add_scalar(tag, value, step)`, such as SummaryWriter of
            torch.utils.tensorboard or of tensorboardX.
        source: A store (the sum of its open variables) or a variable.
        prefix: What each tag begins with. Give each Scalars of one writer its own, such as "kvemb/users".
        clock: A function that returns the time in seconds.

    Raises:
        TypeError: If writer has no `add_scalar`, or source no `stats`.
        KvembError: What `source.stats` raises, such as ShardLost.

    Example:
        >>> from kvemb.monitoring import Scalars
        >>> class Printed:
        ...     def add_scalar(self, tag, value, step):
        ...         if tag in ("kvemb/hit_rate", "kvemb/rows"):
        ...             print(step, tag, value)
        >>> scalars = Scalars(Printed(), store)
        >>> rows = users.lookup([1, 2, 3])
        >>> scalars.write(100)
        100 kvemb/hit_rate 1.0
        100 kvemb/rows 3
    """

    def __init__(
        self,
        writer: ScalarWriter,
        source: Counted,
        *,
        prefix: str = "kvemb",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer must have a method add_scalar(tag, value, step), got {brief(writer)}")
        stats = check_source(source)
        self._writer, self._source, self._prefix, self._clock = writer, source, prefix, clock
        self._lock = threading.Lock()
        self._before, self._then = stats, clock()

    def write(self, step: int) -> None:
        """Write what changed since the last call, or since this object was made.

        Writes nothing if the figures cannot be read, such as after a cluster lost a shard: the next call of the store
        raises the error. If a variable was dropped since, counts of that interval are too low, at least 0.

        Args:
            step: The step to which the figures belong.

        Raises:
            Exception: What the writer raises.
        """
        with uninterrupted(), self._lock:
            try:
                now = self._source.stats
            except KvembError:
                return
            at = self._clock()
            before, elapsed = self._before, at - self._then
            if elapsed <= 0:
                return
            self._before, self._then = now, at
            grown = {
                field: max(0, getattr(now, field) - getattr(before, field))
                for field, figure in OF_STATS.items()
                if figure.counter
            }
            figures: dict[str, float] = {}
            if read := grown["hits"] + grown["misses"]:
                figures["hit_rate"] = grown["hits"] / read
            if grown["misses"]:
                figures["cold_read_seconds_per_miss"] = grown["seconds_cold_read"] / grown["misses"]
            for field, figure in OF_STATS.items():
                if figure.counter:
                    figures[f"{figure.name}_per_second"] = grown[field] / elapsed
                else:
                    figures[figure.name] = getattr(now, field)
            for tier, size in now.tiers.items():
                figures |= {f"{figure.name}/{tier}": getattr(size, field) for field, figure in OF_TIER.items()}
            for name, value in figures.items():
                self._writer.add_scalar(f"{self._prefix}/{name}", value, step)

    def __repr__(self) -> str:
        return f"<kvemb.monitoring.Scalars {self._prefix!r} of {self._source!r}>"
