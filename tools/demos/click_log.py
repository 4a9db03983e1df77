"""A generated click log of any length, without repetition: the demo's input.

Users and items have Zipf popularity, new ids arrive all the time, and popularity ranks pass to other ids now and then.
Clicks are drawn from a hidden logistic model of latent factors, so that there is something to learn. Everything is a
pure function of (seed, position in the log): memory does not grow with the number of ids, and any part of the log can
be drawn again. Immutable, so thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]

HIDDEN_FACTORS = 4
TRAINING, HELD_OUT = 0, 1


def mix(words: npt.NDArray[np.int64] | Words, salt: int) -> Words:
    """Return splitmix64 of (words, salt) (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64 bits for each salt."""
    z = words.astype(np.uint64) + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def unit(words: Words) -> npt.NDArray[np.float64]:
    """Map 64-bit words to [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Population:
    """The users, or the items: which exist at each time, and how popular each is.

    salt: different for each population. at_start: number of ids when the log begins. arrivals: new ids per line of the
    log, below 1; the same share of lines shows an id that has just arrived. zipf: exponent of popularity, not 1.
    tenure: lines after which a popularity rank passes to another id, at different times for different ranks.
    """

    salt: int
    at_start: int
    arrivals: float
    zipf: float
    tenure: int

    def arrived(self, times: Ints) -> Ints:
        """Return how many ids have arrived by each time, at least 1."""
        return np.maximum(1, self.at_start + (times * self.arrivals).astype(np.int64))

    def draw(self, times: Ints, chance: np.random.Generator) -> Ints:
        """Draw one id for each time: 64-bit ids (n,), spread as hashed ids are."""
        n = len(times)
        # The inverse of the continuous Zipf distribution on [1, arrived + 1).
        power = 1.0 - self.zipf
        reach = (self.arrived(times) + 1.0) ** power - 1.0
        ranks = ((1.0 + chance.random(n) * reach) ** (1.0 / power)).astype(np.int64) - 1
        index = self._holders(ranks, times)
        newest = chance.random(n) < self.arrivals
        index[newest] = self.arrived(times[newest]) - 1
        return mix(index, self.salt).view(np.int64)

    def _holders(self, ranks: Ints, times: Ints) -> Ints:
        """Return the index of the id with each rank at each time. If an id has two ranks, their popularity adds up."""
        phase = (mix(ranks, self.salt + 1) % np.uint64(self.tenure)).astype(np.int64)
        turns = (times + phase) // self.tenure
        since = np.maximum(0, turns * self.tenure - phase)
        return (unit(mix(ranks * 1_000_003 + turns, self.salt + 2)) * self.arrived(since)).astype(np.int64)

    def taste(self, ids: Ints, column: int) -> npt.NDArray[np.float64]:
        """Return one column of the hidden model (n,): uniform, mean 0, variance 1, a function of the id alone."""
        taste: npt.NDArray[np.float64] = (unit(mix(ids, self.salt + 3 + column)) - 0.5) * 12.0**0.5
        return taste


@dataclass(frozen=True)
class Clicks:
    """Lines of the log: users, items int64 (n,); clicked float32 (n,), 1 where the shown item was clicked."""

    users: Ints
    items: Ints
    clicked: Floats


@dataclass(frozen=True)
class ClickLog:
    """A log of `lines` lines; the sizes and the drift of the populations are proportional to it."""

    seed: int
    lines: int

    def part(self, start: int, count: int, stream: int = TRAINING) -> Clicks:
        """Draw lines [start, start + count). HELD_OUT lines differ from the TRAINING lines of the same positions."""
        chance = np.random.default_rng([self.seed, stream, start])
        times = np.arange(start, start + count, dtype=np.int64)
        users, items = self.people.draw(times, chance), self.things.draw(times, chance)
        clicked = chance.random(count) < 1.0 / (1.0 + np.exp(-self.logits(users, items)))
        return Clicks(users, items, clicked.astype(np.float32))

    def logits(self, users: Ints, items: Ints) -> npt.NDArray[np.float64]:
        """Return the hidden model's log-odds of a click (n,), the best possible ranking of the lines."""
        people, things = self.people, self.things
        # Users vary less than items; the match of a user and an item has as much variance as both together.
        logits = -1.2 + 0.6 * people.taste(users, 0) + 1.0 * things.taste(items, 0)
        for column in range(1, HIDDEN_FACTORS + 1):
            logits += 0.6 * people.taste(users, column) * things.taste(items, column)
        return logits

    @property
    def people(self) -> Population:
        """The users: at the start one for every eight lines; a third of this number arrive during the log."""
        size = max(1, self.lines // 8)
        return Population(self.seed * 64 + 1, size, 0.04, 0.7, max(1, self.lines // 2))

    @property
    def things(self) -> Population:
        """The items: at the start a tenth of the number of users, a few of them very popular."""
        size = max(1, self.lines // 80)
        return Population(self.seed * 64 + 33, size, 0.005, 0.9, max(1, self.lines // 2))


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
