"""A table as plain arrays over a known set of keys: what every operation of a variable must give, bit for bit.

Independent of tiers, hashing and storage: a key is a place in a sorted array, an operation a few lines of NumPy. It
shares with kvemb only what is a pure function: an initializer's rows, a policy's score and an optimizer's formula. One
thread.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import FrequencyRestrictPolicy, Initializer, RestrictPolicy
from kvemb.optimizers import Optimizer

Keys = npt.NDArray[Any]
Places = npt.NDArray[np.intp]
Values = npt.NDArray[Any]


def in_order(places: Places) -> Iterator[Places]:
    """Yield positions of a batch in rounds, so that no round names a place twice and each place's come in order."""
    by_place = np.argsort(places, kind="stable")
    ordered = places[by_place]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    for turn in np.unique(rank):
        yield by_place[rank == turn]


class Model:
    """Rows, slots, scores and presence of every key in `universe`, sorted and distinct, of the key dtype.

    step: calls that recorded uses so far.
    """

    def __init__(
        self,
        universe: Keys,
        value_dtype: np.dtype[Any],
        dim: int,
        *,
        initializer: Initializer,
        optimizer: Optimizer | None = None,
        policy: RestrictPolicy | None = None,
    ) -> None:
        self.universe, self.dtype, self.dim = universe, value_dtype, dim
        self.optimizer, self.policy = optimizer, policy
        self.state_dtype = value_dtype if value_dtype.itemsize > 2 else np.dtype(np.float32)
        whole = universe.view(np.int64) if universe.dtype == np.uint64 else universe.astype(np.int64)
        self.first = initializer.rows(whole, dim, value_dtype)
        self.present = np.zeros(len(universe), np.bool_)
        self.values = np.zeros((len(universe), dim), value_dtype)
        shapes = [] if optimizer is None else optimizer.shapes(dim)
        self.slots = {slot.name: np.zeros((len(universe), slot.width), self.state_dtype) for slot in shapes}
        self.scores = np.zeros(len(universe))
        self.step = 0

    def copy(self) -> Model:
        """Return this state, to come back to."""
        return copy.deepcopy(self)

    def places(self, keys: Keys) -> Places:
        """Return each key's place."""
        return np.searchsorted(self.universe, keys)

    @property
    def size(self) -> int:
        """Keys that are present."""
        return int(self.present.sum())

    def lookup(self, keys: Keys, *, touch: bool) -> tuple[Values, npt.NDArray[np.bool_]]:
        """Return rows and existence of keys (n,)."""
        at = self.places(keys)
        exists = self.present[at]
        rows = np.where(exists[:, None], self.values[at], self.first[at])
        if touch:
            self.use(keys)
        return rows, exists

    def use(self, keys: Keys) -> None:
        """Record one use of each occurrence."""
        self.step += 1
        places, counts = np.unique(self.places(keys), return_counts=True)
        here = self.present[places]
        self._score(places[here], counts[here])

    def _score(self, places: Places, counts: npt.NDArray[Any]) -> None:
        policy = self.policy or FrequencyRestrictPolicy()
        if len(places):
            self.scores[places] = policy.score(self.scores[places], counts, policy.now(self.step))

    def _create(self, places: Places) -> None:
        """Make absent places rows; being made is the first use."""
        policy = self.policy or FrequencyRestrictPolicy()
        self.present[places] = True
        self.values[places] = self.first[places]
        for slot in self.optimizer.slots if self.optimizer else ():
            self.slots[slot.name][places] = slot.initial
        self.scores[places] = policy.initial_score
        self._score(places, np.ones(len(places), np.int64))

    def upsert(self, keys: Keys, values: Values) -> None:
        """Set values (n, dim); the last of duplicates counts."""
        at = self.places(keys)
        self._create(np.unique(at[~self.present[at]]))
        for turn in in_order(at):
            self.values[at[turn]] = values[turn]

    def accum(self, keys: Keys, old: Values, new: Values, exists: npt.NDArray[np.bool_]) -> None:
        """Occurrence by occurrence: add new - old to a key believed and found present; insert one not; else ignore."""
        at = self.places(keys)
        for turn in in_order(at):
            here = self.present[at[turn]]
            adding, making = turn[exists[turn] & here], turn[~exists[turn] & ~here]
            self.values[at[adding]] = self._sum(self.values[at[adding]], old[adding], new[adding])
            self._create(at[making])
            self.values[at[making]] = new[making]

    def _sum(self, values: Values, old: Values, new: Values) -> Values:
        # Integers wrap around; 16-bit floats are added in float32 and rounded once.
        wide = self.state_dtype if self.dtype.kind != "i" else np.dtype(np.int64)
        with np.errstate(all="ignore"):
            total: Values = values.astype(wide) + (new.astype(wide) - old.astype(wide))
            return total.astype(self.dtype)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take one step on each distinct key, with its gradients summed in order."""
        at = self.places(keys)
        places, inverse = np.unique(at, return_inverse=True)
        total = np.full((len(places), self.dim), -0.0, self.state_dtype)
        for turn in in_order(at):
            total[inverse[turn]] += grads[turn]
        self._create(places[~self.present[places]])
        assert self.optimizer is not None
        slots = {name: slot[places] for name, slot in self.slots.items()}
        self.values[places] = self.optimizer.step(self.values[places], slots, total)
        for name, slot in slots.items():
            self.slots[name][places] = slot

    def remove(self, keys: Keys) -> None:
        """Drop keys with all that is theirs."""
        self.present[self.places(keys)] = False

    def clear(self) -> None:
        """Drop every key."""
        self.present[:] = False

    def restrict(self, keep: int, trigger: int | None = None) -> int:
        """Keep the highest scores, ties to the larger key; return how many keys left."""
        before = self.size
        if trigger is None or before > trigger:
            here = np.flatnonzero(self.present)
            best_first = here[np.lexsort((here, self.scores[here]))][::-1]
            self.present[best_first[keep:]] = False
        return before - self.size

    def status(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return scores, NaN for absent keys."""
        at = self.places(keys)
        return np.where(self.present[at], self.scores[at], np.nan)

    def export(self) -> tuple[Keys, Values, dict[str, Values], npt.NDArray[np.float64]]:
        """Return keys in order, values, slots and scores of every row."""
        here = self.present
        slots = {name: slot[here] for name, slot in self.slots.items()}
        return self.universe[here], self.values[here], slots, self.scores[here]
