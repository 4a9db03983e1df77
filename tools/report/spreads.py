"""How numbers of rows are distributed: bins and percentiles of a column that is read once, in bounded memory.

Numbers are kept in a temporary file until their range is known; percentiles come from a sample that is the same in
every run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from kvemb.tools.report.bins import Bins, Kind, Numbers, bins, percentiles

SAMPLE = 131_072
_CHUNK = 1 << 20


@dataclass
class Spread:
    """How numbers are distributed. infinite: how many are infinite and so in no bin. sampled: whether percentiles come
    from a sample of the numbers.
    """

    bins: Bins | None = None
    percentiles: list[tuple[str, float]] = field(default_factory=list)
    infinite: int = 0
    sampled: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return edges and counts, how many numbers are outside, and the percentiles by name."""
        found: dict[str, Any] = {"percentiles": dict(self.percentiles), "infinite": self.infinite}
        if self.bins is not None:
            found |= {"edges": self.bins.edges.tolist(), "counts": self.bins.counts.tolist()}
            found |= {"below": self.bins.under, "above": self.bins.over}
        return found


class Column:
    """One number of each row, in a file; with a sample, the smallest and the largest of the finite ones."""

    def __init__(self, file: IO[bytes], seed: int) -> None:
        self._file, self._chance = file, np.random.default_rng(seed)
        self._sample, self._order = np.empty(0), np.empty(0)
        self._count, self._infinite = 0, 0
        self._least, self._most = np.inf, -np.inf

    def add(self, numbers: Numbers) -> None:
        """Add more numbers. Each gets a random number; those with the smallest ones are the sample."""
        finite: Any = numbers[np.isfinite(numbers)]
        self._infinite += len(numbers) - len(finite)
        if len(finite) == 0:
            return
        self._file.write(finite.tobytes())
        self._count += len(finite)
        self._least, self._most = min(self._least, float(finite.min())), max(self._most, float(finite.max()))
        sample = np.concatenate([self._sample, finite])
        order = np.concatenate([self._order, self._chance.random(len(finite))])
        if len(sample) > SAMPLE:
            kept = np.argpartition(order, SAMPLE)[:SAMPLE]
            sample, order = sample[kept], order[kept]
        self._sample, self._order = sample, order

    def spread(self, kind: Kind) -> Spread:
        """Return how the numbers are distributed."""
        if self._count == 0:
            return Spread(infinite=self._infinite)
        found = bins(self._sample, self._least, self._most, kind)
        self._file.seek(0)
        while part := self._file.read(8 * _CHUNK):
            found.add(np.frombuffer(part, np.float64))
        between = percentiles(self._sample, self._least, self._most)
        return Spread(found, between, self._infinite, self._count > SAMPLE)
