"""Bags of keys, whose rows are pooled into one row: the bounds of each bag and the weights of its rows. Pure values.

The pooled row of a bag is (sum over its keys, in order, of weight * clipped row) / divisor, calculated in the slots'
dtype (16-bit rows in float32) and rounded once to the value dtype.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvemb.rows.hashing import Positions


class Bags(NamedTuple):
    """b bags of n keys.

    offsets (b + 1,) int64: bag i has the keys offsets[i] to offsets[i + 1] - 1; ascending from 0 to n. weights (n,), or
    (0,) if all are 1. divisors (b,), or (0,) if all are 1; if a divisor is 0, the pooled row is zero. Both are in the
    slots' dtype. most_norm: a row with a larger L2 norm is scaled down to this norm before it is weighted; inf: no row
    is.
    """

    offsets: Positions
    weights: npt.NDArray[Any]
    divisors: npt.NDArray[Any]
    most_norm: float

    @property
    def bag_count(self) -> int:
        """The number of bags."""
        return len(self.offsets) - 1

    def of_keys(self) -> Positions:
        """Return the bag of each key (n,)."""
        return np.repeat(np.arange(self.bag_count), np.diff(self.offsets))

    def holding(self, positions: Positions) -> Positions:
        """Return the bags of the keys at these positions, each once, ascending."""
        return np.unique(np.searchsorted(self.offsets, positions, "right") - 1)

    def only(self, chosen: Positions) -> tuple[Positions, Bags]:
        """Return the positions of the chosen bags' keys, in order, and a Bags of the chosen bags only."""
        begins, sizes = self.offsets[chosen], np.diff(self.offsets)[chosen]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        positions = np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])
        weights = self.weights[positions] if len(self.weights) else self.weights
        divisors = self.divisors[chosen] if len(self.divisors) else self.divisors
        return positions, Bags(offsets, weights, divisors, self.most_norm)


def bounds_of(given: npt.NDArray[Any], keys: int, *, last_included: bool, what: str = "ids") -> Positions:
    """Return Bags.offsets, a new array, from a caller's offsets.

    given: integers (b,): where each bag begins; with last_included (b + 1,), the last one is the number of keys. keys:
    the number of keys. what: the keys' name in errors. Raises TypeError, ValueError.
    """
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"offsets must be integers, got {given.dtype.name}")
    if given.ndim != 1:
        raise ValueError(f"offsets must have one dimension, got the shape {given.shape}")
    bounds = given.astype(np.int64)
    if last_included and not len(given):
        raise ValueError(f"with include_last_offset=True, offsets must end with {keys}, the number of {what}, got none")
    if not last_included:
        bounds = np.append(bounds, keys)
    if bounds[0] != 0:
        found = bounds[0] if len(given) else f"none for {keys} {what}"
        lengths = not last_included and len(given) and given.min() >= 0 and given.sum() == keys
        hint = "; from lengths, offsets are cumsum(lengths) - lengths" if lengths else ""
        raise ValueError(f"offsets must begin with 0, got {found}{hint}")
    down = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(down):
        at = int(down[0])
        if at + 1 == len(given):
            raise ValueError(f"offsets must be at most {keys}, the number of {what}, got {bounds[at]}")
        raise ValueError(f"offsets must not descend, got {bounds[at]}, then {bounds[at + 1]} at index {at + 1}")
    if bounds[-1] != keys:
        raise ValueError(
            f"with include_last_offset=True, offsets must end with {keys}, the number of {what}, got {bounds[-1]}"
        )
    return bounds


class RowsBeside(NamedTuple):
    """Rows of keys that are not in a hot table. at (n,): the position of each key's row in values (m, ·), or -1."""

    at: Positions
    values: npt.NDArray[Any]
