"""A generated click log of any length, with a hidden teacher: the input of `kvemb demo`.

A line has a few numbers and one id of each field, such as the user and the item. Half of a field's lines show popular
ids (Zipf), the other half all ids in turn, in scattered order. So new ids appear all the time, and every id has been
seen when the log ends. Clicks are drawn from a hidden model of the ids, of pairs of them, and of the numbers.

Everything is a pure function of (seed, position in the log): memory does not grow with the number of ids, and any part
of the log can be drawn again. Immutable, so thread-safe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]

TRAINING, HELD_OUT = 0, 1
ZIPF = 0.9
# The hidden model: the variances of all fields, of all pairs of neighbouring fields, and of a number in the log-odds.
OF_FIELDS, OF_PAIRS, OF_NUMBER, BIAS = 2.34, 0.8125, 0.09, -1.0


def _mix(words: Ints, salt: int) -> Words:
    """Return splitmix64 of (words, salt) (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64 bits for each salt."""
    z = words.astype(np.uint64) + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class Clicks:
    """Lines of the log: ids int64 (n, fields); numbers float32 (n, numbers); clicked float32 (n,), 0 or 1."""

    ids: Ints
    numbers: Floats
    clicked: Floats


@dataclass(frozen=True)
class ClickLog:
    """A log of `lines` lines. sizes: the number of ids of each field, which are 0 to size - 1. numbers: of a line."""

    seed: int
    lines: int
    sizes: tuple[int, ...]
    numbers: int = 0

    def part(self, start: int, count: int, stream: int = TRAINING) -> Clicks:
        """Draw lines [start, start + count). HELD_OUT lines differ from the TRAINING lines of the same positions."""
        chance = np.random.default_rng([self.seed, stream, start])
        times = np.arange(start, start + count)
        ids = np.stack([self._draw(field, times, chance) for field in range(len(self.sizes))], axis=1)
        numbers = chance.standard_normal((count, self.numbers), np.float32)
        clicked = chance.random(count) < 1.0 / (1.0 + np.exp(-self.logits(ids, numbers)))
        return Clicks(ids, numbers, clicked.astype(np.float32))

    def _draw(self, field: int, times: Ints, chance: np.random.Generator) -> Ints:
        """Draw an id of a field for each line: popular ones and ids in turn alternate."""
        size = self.sizes[field]
        # The inverse of the continuous Zipf distribution on [1, size + 1).
        power = 1.0 - ZIPF
        drawn = (1.0 + chance.random(len(times)) * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)
        ranks = drawn.astype(np.int64) - 1
        in_turn = (times + field) % 2 == 0
        ranks[in_turn] = times[in_turn] // 2 % size
        scattered: Ints = np.minimum(ranks, size - 1) * _stride(size) % size
        return scattered

    def logits(self, ids: Ints, numbers: Floats) -> npt.NDArray[np.float64]:
        """Return the hidden model's log-odds of a click (n,), the best possible ranking of the lines."""
        logits: npt.NDArray[np.float64] = BIAS + OF_NUMBER**0.5 * numbers.sum(axis=1, dtype=np.float64)
        fields = len(self.sizes)
        for field in range(fields):
            logits += (OF_FIELDS / fields) ** 0.5 * self._taste(ids, field, 0)
            if field % 2:
                pair = self._taste(ids, field - 1, 1) * self._taste(ids, field, 1)
                logits += (OF_PAIRS / (fields // 2)) ** 0.5 * pair
        return logits

    def _taste(self, ids: Ints, field: int, column: int) -> npt.NDArray[np.float64]:
        """Return one column of the hidden model (n,): uniform, mean 0, variance 1, a function of field and id alone."""
        salt = (self.seed * len(self.sizes) + field) * 2 + column
        uniform = (_mix(ids[:, field], salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        taste: npt.NDArray[np.float64] = (uniform - 0.5) * 12.0**0.5
        return taste


def _stride(size: int) -> int:
    """Return a step that visits all of range(size) before it returns, and places neighbours far apart."""
    stride = max(1, round(size * 0.6180339887))
    while math.gcd(stride, size) > 1:
        stride += 1
    return stride


def auc(scores: npt.NDArray[np.floating], clicked: Floats) -> float:
    """Return the area under the ROC curve; ties count half. 0.5 is chance; NaN if all lines are of one class.

    scores (n,) float, clicked (n,) of 0 and 1. By ranks: Mann and Whitney, 1947.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    hits = float(clicked.sum())
    misses = len(clicked) - hits
    if hits == 0 or misses == 0:
        return float("nan")
    return float((mean_ranks[clicked > 0].sum() - hits * (hits + 1) / 2) / (hits * misses))
