"""A model of a table as plain arrays over a known set of keys; every operation of a variable must agree bit for bit.

Independent of tiers, hashing and storage: a key is a position in a sorted array, an operation a few lines of NumPy. It
shares only pure functions with kvemb: an initializer's rows, a policy's score and an optimizer's formula. Not
thread-safe.
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
Positions = npt.NDArray[np.intp]
Values = npt.NDArray[Any]


def in_order(positions: Positions) -> Iterator[Positions]:
    """Yield positions in a batch in rounds: no round has a key twice, and the occurrences of each key are in order."""
    by_position = np.argsort(positions, kind="stable")
    ordered = positions[by_position]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    for turn in np.unique(rank):
        yield by_position[rank == turn]


class Model:
    """Rows, slots, scores and presence of every key in `universe`, sorted and distinct, of the key dtype.

    step: calls that recorded uses so far. optimizer_steps: steps so far, if the optimizer counts them.
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
        self.step = self.optimizer_steps = 0

    def copy(self) -> Model:
        """Return a copy of this state."""
        return copy.deepcopy(self)

    def positions(self, keys: Keys) -> Positions:
        """Return each key's position in universe."""
        return np.searchsorted(self.universe, keys)

    @property
    def size(self) -> int:
        """The number of keys that are present."""
        return int(self.present.sum())

    def lookup(self, keys: Keys, *, touch: bool) -> tuple[Values, npt.NDArray[np.bool_]]:
        """Return rows and existence of keys (n,)."""
        at = self.positions(keys)
        exists = self.present[at]
        rows = np.where(exists[:, None], self.values[at], self.first[at])
        if touch:
            self.use(keys)
        return rows, exists

    def use(self, keys: Keys) -> None:
        """Record one use of each occurrence."""
        self.step += 1
        positions, counts = np.unique(self.positions(keys), return_counts=True)
        here = self.present[positions]
        self._score(positions[here], counts[here])

    def _score(self, positions: Positions, counts: npt.NDArray[Any]) -> None:
        policy = self.policy or FrequencyRestrictPolicy()
        if len(positions):
            self.scores[positions] = policy.score(self.scores[positions], counts, policy.now(self.step))

    def _create(self, positions: Positions) -> None:
        """Create rows at absent positions; the creation is their first use."""
        policy = self.policy or FrequencyRestrictPolicy()
        self.present[positions] = True
        self.values[positions] = self.first[positions]
        for slot in self.optimizer.slots if self.optimizer else ():
            self.slots[slot.name][positions] = slot.initial
        self._match(positions)
        self.scores[positions] = policy.initial_score
        self._score(positions, np.ones(len(positions), np.int64))

    def _match(self, positions: Positions) -> None:
        """Update the slots that depend on embeddings, which were set at these positions."""
        if self.optimizer is not None and self.optimizer.match is not None:
            slots = {name: slot[positions] for name, slot in self.slots.items()}
            self.optimizer.match_slots(self.values[positions], slots)
            for name, slot in slots.items():
                self.slots[name][positions] = slot

    def upsert(self, keys: Keys, values: Values) -> None:
        """Set values (n, dim); the last of duplicate keys wins."""
        at = self.positions(keys)
        self._create(np.unique(at[~self.present[at]]))
        for turn in in_order(at):
            self.values[at[turn]] = values[turn]
        self._match(np.unique(at))

    def accum(self, keys: Keys, old: Values, new: Values, exists: npt.NDArray[np.bool_]) -> None:
        """For each occurrence: add new - old if exists and present; insert new if neither; otherwise ignore it."""
        at = self.positions(keys)
        for turn in in_order(at):
            here = self.present[at[turn]]
            adding, making = turn[exists[turn] & here], turn[~exists[turn] & ~here]
            self.values[at[adding]] = self._sum(self.values[at[adding]], old[adding], new[adding])
            self._create(at[making])
            self.values[at[making]] = new[making]
            self._match(at[np.concatenate([adding, making])])

    def _sum(self, values: Values, old: Values, new: Values) -> Values:
        # Integers wrap around; 16-bit floats are added in float32 and rounded once.
        wide = self.state_dtype if self.dtype.kind != "i" else np.dtype(np.int64)
        with np.errstate(all="ignore"):
            total: Values = values.astype(wide) + (new.astype(wide) - old.astype(wide))
            return total.astype(self.dtype)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take one optimizer step on each distinct key, with its gradients summed in order."""
        at = self.positions(keys)
        positions, inverse = np.unique(at, return_inverse=True)
        total = np.full((len(positions), self.dim), -0.0, self.state_dtype)
        for turn in in_order(at):
            total[inverse[turn]] += grads[turn]
        self._create(positions[~self.present[positions]])
        assert self.optimizer is not None
        slots = {name: slot[positions] for name, slot in self.slots.items()}
        self.optimizer_steps += self.optimizer.counts_steps and len(keys) > 0
        taken = self.optimizer.step(self.values[positions], slots, total, self.optimizer_steps)
        self.values[positions] = taken
        for name, slot in slots.items():
            self.slots[name][positions] = slot

    def remove(self, keys: Keys) -> None:
        """Remove keys with their rows."""
        self.present[self.positions(keys)] = False

    def clear(self) -> None:
        """Remove every key."""
        self.present[:] = False

    def restrict(self, keep: int, trigger: int | None = None) -> int:
        """Keep the highest scores, for equal scores the larger keys; returns how many keys were removed."""

        before = self.size
        if trigger is None or before > trigger:
            here = np.flatnonzero(self.present)
            best_first = here[np.lexsort((here, self.scores[here]))][::-1]
            self.present[best_first[keep:]] = False
        return before - self.size

    def status(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return scores, NaN for absent keys."""
        at = self.positions(keys)
        return np.where(self.present[at], self.scores[at], np.nan)

    def export(self) -> tuple[Keys, Values, dict[str, Values], npt.NDArray[np.float64]]:
        """Return keys in order, values, slots and scores of every row."""
        here = self.present
        slots = {name: slot[here] for name, slot in self.slots.items()}
        return self.universe[here], self.values[here], slots, self.scores[here]
