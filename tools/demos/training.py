"""The training loop of the demos in NumPy: prefetches the next batch's rows, and counts rows, seconds and hits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import kvemb
from kvemb.tools.screen import Advance
from kvemb.tools.stopping import check

Batch = TypeVar("Batch", contravariant=True)
Given = TypeVar("Given")
NOTE_EVERY_SECONDS = 0.25
# The explanation for the duration of the first batch in the first run on a machine.
FIRST_NOTE = "compiling kernels, once"


class Model(Protocol[Batch]):
    """A model that train() can train."""

    @property
    def variables(self) -> Sequence[kvemb.Variable]:
        """The variables whose hits and misses are shown."""

    def prefetch(self, batch: Batch) -> None:
        """Start reading the rows that training on the batch will need."""

    def train(self, batch: Batch) -> int:
        """Take one step; returns how many rows were looked up and updated."""


class Meter:
    """Batches done, rows per second, and the hit rate since training began.

    The first batch is timed separately, as `first_seconds`: in the first run on a machine it compiles kernels.
    """

    def __init__(self, variables: Sequence[kvemb.Variable], advance: Advance) -> None:
        self._variables, self._advance = variables, advance
        self._noted = -NOTE_EVERY_SECONDS  # the first note is shown at once
        self.batches = self.rows = 0
        self.seconds = self.first_seconds = 0.0

    def count(self, rows: int, seconds: float) -> None:
        """Record a batch, and update the progress bar every NOTE_EVERY_SECONDS."""
        self.batches += 1
        if self.batches == 1:
            self.first_seconds = seconds
            return
        self.rows, self.seconds = self.rows + rows, self.seconds + seconds
        if self.seconds - self._noted >= NOTE_EVERY_SECONDS:
            self._noted = self.seconds
            self._advance(self.batches, f"hit rate {self.hit_rate:.3f} · {self.rows_per_second:,.0f} rows/s")

    @property
    def rows_per_second(self) -> float:
        """Rows looked up and updated per second of training; 0 before the second batch."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float:
        """The share of existing looked-up rows that were hot; 0 before the first lookup."""
        hits = sum(variable.stats.hits for variable in self._variables)
        misses = sum(variable.stats.misses for variable in self._variables)
        return hits / (hits + misses) if hits + misses else 0.0


def train(model: Model[Given], batches: Iterable[Given], meter: Meter) -> None:
    """Train on all batches in order."""
    coming = iter(batches)
    batch = next(coming, None)
    while batch is not None:
        started = time.perf_counter()
        following = next(coming, None)
        if following is not None:
            model.prefetch(following)
        rows = model.train(batch)
        meter.count(rows, time.perf_counter() - started)
        check()
        batch = following
