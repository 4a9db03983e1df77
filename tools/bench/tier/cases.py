"""The settings of `kvemb bench tier`, and its cases in order.

The first size is measured at every hot share and skew. Then follow, at the middle one of each, a series of checkpoints
and a restart at the first size, and training steps at further sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvemb.tools.bench.trained import cell_bytes

MIB = 1 << 20
# Memory besides the hot rows: for the memtables of the loop written by hand; the store needs less.
MIN_MEMORY = 64 * MIB


@dataclass(frozen=True)
class Settings:
    """The settings of all cases. steps: the most of one window; seconds: the most for the steps of a window.

    checkpoints: of the series, with `steps` steps before each.
    """

    dim: int
    batch: int
    steps: int
    runs: int
    seconds: float
    checkpoints: int

    def memory(self, hot_rows: int) -> int:
        """Return the memory in bytes that both sides get: one and a half times the hot rows' cells, and 64 MiB."""
        return MIN_MEMORY + hot_rows * cell_bytes(self.dim) * 3 // 2


@dataclass(frozen=True)
class Case:
    """One measurement. hot: the share of the rows that fits the hot tier; zipf: the exponent of popularity."""

    kind: Literal["steps", "series", "restart"]
    rows: int
    hot: float
    zipf: float

    @property
    def hot_rows(self) -> int:
        """The number of hot rows, at least one."""
        return max(1, round(self.rows * self.hot))

    def __str__(self) -> str:
        what = {"steps": "training steps", "series": "a series of checkpoints", "restart": "restart"}[self.kind]
        return f"{what}, {self.rows:,} rows, {100 * self.hot:g}% hot, Zipf {self.zipf:g}"


def plan(rows: list[int], hot: list[float], zipf: list[float]) -> list[Case]:
    """Return the cases in order."""
    rows, hot, zipf = list(dict.fromkeys(rows)), sorted(set(hot)), sorted(set(zipf))
    middle = hot[len(hot) // 2], zipf[len(zipf) // 2]
    cases = [Case("steps", rows[0], share, skew) for share in hot for skew in zipf]
    cases += [Case("series", rows[0], *middle), Case("restart", rows[0], *middle)]
    return cases + [Case("steps", size, *middle) for size in rows[1:]]
