"""A generated click log of many fields, with a hidden teacher: what `kvemb demo --dlrm` trains on.

A line has a few numbers and one id of each field. Fields have different sizes: the first is the largest, the k-th has
a k-th of its ids. Half of a field's lines show popular ids (Zipf), the other half all ids in turn, in scattered order,
so that every id has been seen when the log ends. Clicks are drawn from a hidden model of the ids, of pairs of them,
and of the numbers. Everything is a pure function of (seed, position in the log). Immutable, so thread-safe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvemb.tools.demos.click_log import TRAINING, Floats, Ints, mix, unit

FIELDS, NUMBERS = 26, 4
ZIPF = 0.9
# The hidden model: standard deviations of the terms of a field, a pair of neighbouring fields and a number in the
# log-odds.
FIELD_SPREAD, PAIR_SPREAD, NUMBER_SPREAD, BIAS = 0.3, 0.25, 0.3, -1.0


@dataclass(frozen=True)
class Lines:
    """Lines of the log: numbers float32 (n, NUMBERS), ids int64 (n, FIELDS), clicked float32 (n,), 0 or 1."""

    numbers: Floats
    ids: Ints
    clicked: Floats


@dataclass(frozen=True)
class FieldLog:
    """A log of `lines` lines, to which the sizes of the fields are proportional."""

    seed: int
    lines: int

    @property
    def sizes(self) -> list[int]:
        """The number of ids of each field, which are 0 to size - 1."""
        return [max(1, self.lines // 2 // (number + 1)) for number in range(FIELDS)]

    def part(self, start: int, count: int, stream: int = TRAINING) -> Lines:
        """Draw lines [start, start + count). HELD_OUT lines differ from the TRAINING lines of the same positions."""
        chance = np.random.default_rng([self.seed, stream, start])
        times = np.arange(start, start + count)
        ids = np.stack([self._draw(field, times, chance) for field in range(FIELDS)], axis=1)
        numbers = chance.standard_normal((count, NUMBERS), np.float32)
        clicked = chance.random(count) < 1.0 / (1.0 + np.exp(-self.logits(numbers, ids)))
        return Lines(numbers, ids, clicked.astype(np.float32))

    def _draw(self, field: int, times: Ints, chance: np.random.Generator) -> Ints:
        """Draw an id of a field for each line: popular ones and ids in turn alternate."""
        size = self.sizes[field]
        # The inverse of the continuous Zipf distribution on [1, size + 1).
        power = 1.0 - ZIPF
        ranks = ((1.0 + chance.random(len(times)) * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)).astype(
            np.int64
        ) - 1
        in_turn = (times + field) % 2 == 0
        ranks[in_turn] = times[in_turn] // 2 % size
        scattered: Ints = np.minimum(ranks, size - 1) * _stride(size) % size
        return scattered

    def logits(self, numbers: Floats, ids: Ints) -> npt.NDArray[np.float64]:
        """Return the hidden model's log-odds of a click (n,), the best possible ranking of the lines."""
        logits: npt.NDArray[np.float64] = BIAS + NUMBER_SPREAD * numbers.sum(axis=1, dtype=np.float64)
        for field in range(FIELDS):
            logits += FIELD_SPREAD * self._taste(ids, field, 0)
            if field % 2:
                logits += PAIR_SPREAD * self._taste(ids, field - 1, 1) * self._taste(ids, field, 1)
        return logits

    def _taste(self, ids: Ints, field: int, column: int) -> npt.NDArray[np.float64]:
        """Return one column of the hidden model (n,): uniform, mean 0, variance 1, a function of field and id alone."""
        salt = (self.seed * FIELDS + field) * 2 + column
        taste: npt.NDArray[np.float64] = (unit(mix(ids[:, field], salt)) - 0.5) * 12.0**0.5
        return taste


def _stride(size: int) -> int:
    """Return a step that visits all of range(size) before it returns, and places neighbours far apart."""
    stride = max(1, round(size * 0.6180339887))
    while math.gcd(stride, size) > 1:
        stride += 1
    return stride
