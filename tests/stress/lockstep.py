"""Compares a variable with its model: every call is made on both, and the results must be equal bit for bit.

Not thread-safe. After reopening or restoring, make a new checker with the model of the expected state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import Variable
from stress.model import Keys, Model, Values


class Difference(AssertionError):
    """The variable and its model gave different results."""


def check_same(what: str, got: npt.NDArray[Any], expected: npt.NDArray[Any], keys: Keys | None = None) -> None:
    """Raise Difference unless the arrays have the same shape, dtype and bits; any NaN equals any other."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise Difference(f"{what}: got {got.dtype} {got.shape}, expected {expected.dtype} {expected.shape}")
    bits = np.dtype(f"u{got.dtype.itemsize}")
    differs = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(expected).view(bits)
    if got.dtype.kind not in "biu":
        differs &= ~(np.isnan(got) & np.isnan(expected))
    if differs.any():
        at = tuple(int(positions[0]) for positions in np.nonzero(differs))
        of = "" if keys is None else f" of key {keys[at[0]]}"
        first = f"at {at}{of} got {got[at]!r}, expected {expected[at]!r}"
        raise Difference(f"{what}: {int(differs.sum())} of {differs.size} differ; {first}")


class LockstepChecker:
    """A variable and its model. Methods are those of the variable; keys are of its key dtype, (n,)."""

    def __init__(self, variable: Variable, model: Model) -> None:
        self.variable, self.model = variable, model

    def lookup(self, keys: Keys, *, touch: bool) -> None:
        """Compare rows and existence."""
        rows, exists = self.variable.lookup(keys, return_exists=True, touch=touch)
        expected, present = self.model.lookup(keys, touch=touch)
        check_same("lookup's exists", exists, present, keys)
        check_same("lookup", rows, expected, keys)

    def upsert(self, keys: Keys, values: Values) -> None:
        """Set values."""
        self.variable.upsert(keys, values)
        self.model.upsert(keys, values)

    def accum(self, keys: Keys, old: Values, new: Values, exists: npt.NDArray[np.bool_]) -> None:
        """Add deltas, or insert."""
        self.variable.accum(keys, old, new, exists)
        self.model.accum(keys, old, new, exists)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take a training step."""
        self.variable.apply_gradients(keys, grads)
        self.model.apply_gradients(keys, grads)

    def remove(self, keys: Keys) -> None:
        """Drop keys."""
        self.variable.remove(keys)
        self.model.remove(keys)

    def clear(self) -> None:
        """Drop every key."""
        self.variable.clear()
        self.model.clear()

    def use(self, keys: Keys) -> None:
        """Record uses; the variable must have a policy."""
        assert self.variable.restrict_policy is not None
        self.variable.restrict_policy.apply_update(keys)
        self.model.use(keys)

    def restrict(self, keep: int, trigger: int | None = None) -> None:
        """Restrict the table, and compare how many rows were removed; without a policy, none are."""
        if self.model.policy is None:
            return
        removed, expected = self.variable.restrict(keep, trigger=trigger), self.model.restrict(keep, trigger)
        if removed != expected:
            raise Difference(f"restrict: got {removed} removed rows, expected {expected}")

    def check_status(self, keys: Keys) -> None:
        """Compare scores."""
        assert self.variable.restrict_policy is not None
        check_same("status", self.variable.restrict_policy.status(keys), self.model.status(keys), keys)

    def check_size(self) -> None:
        """Compare the number of rows."""
        if self.variable.size() != self.model.size:
            raise Difference(f"size: got {self.variable.size()}, expected {self.model.size}")

    def check_shard_sizes(self) -> None:
        """Compare the number of rows of each device."""
        count = len(self.variable.devices)
        numbers = self.variable.partitioner(self.model.universe[self.model.present], count)
        for index in range(count):
            got, expected = self.variable.size(index), int(np.sum(np.asarray(numbers) == index))
            if got != expected:
                raise Difference(f"size({index}): got {got}, expected {expected}")

    def check_export(self, batch_rows: int | None = None) -> None:
        """Compare every row with its slots and its score, exported whole or batch by batch."""
        keys, values, slots, scores = self.model.export()
        got: Any
        if batch_rows is None:
            got = self.variable.export(with_slots=True, with_scores=True)
        else:
            batches = list(self.variable.export_batches(batch_rows, with_slots=True, with_scores=True))
            if any(len(batch[0]) != batch_rows for batch in batches[:-1]):
                raise Difference(f"export_batches({batch_rows}): got {[len(batch[0]) for batch in batches]} rows")
            if not batches:
                return self.check_size()
            parts = list(zip(*batches, strict=True))
            joined = {name: np.concatenate([part[name] for part in parts[2]]) for name in slots}
            got = (np.concatenate(parts[0]), np.concatenate(parts[1]), joined, np.concatenate(parts[3]))
        check_same("export's keys", got[0], keys)
        check_same("export's values", got[1], values, keys)
        if got[2].keys() != slots.keys():
            raise Difference(f"export's slots: got {sorted(got[2])}, expected {sorted(slots)}")
        for name, slot in slots.items():
            check_same(f"export's slot {name}", got[2][name], slot, keys)
        check_same("export's scores", got[3], scores, keys)
