"""The base class of restrict policies.

A policy turns the uses of a row into its score, one float64; the higher score survives, both in the hot tier (evict)
and in the table (restrict). A policy only decides; when it is bound to a variable, its methods delegate to that
variable. A user-defined policy is called on the thread that uses the variable, under that variable's lock.
"""

from __future__ import annotations

import copy
import enum
import math
import time
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_ROWS
from kvemb.handle import Handle, inside
from kvemb.moment import current_moment

Scores = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

CLOCKS = ("seconds", "steps")
Self = TypeVar("Self", bound="RestrictPolicy")


class ScoreRule(enum.IntEnum):
    """How a hot table computes a score inside its kernels. Passed to kernels; not on disk."""

    LAST_USE = 0  # score = max(old, now)
    COUNT = 1  # score = old + uses
    CUSTOM = 2  # the table does not change scores; the policy's score() is called on distinct rows


class ScoredRows(Protocol):
    """The methods that a policy needs of the variable it is bound to."""

    def record_uses(self, keys: npt.ArrayLike) -> None:
        """Record one use for each occurrence of keys."""

    def restrict(self, num_reserved: int, trigger: int | None) -> int:
        """Keep the rows with the highest scores; return how many were removed."""

    def scores(self, keys: npt.ArrayLike) -> Scores:
        """Return the scores of keys, of keys.shape."""


class RestrictPolicy:
    """The base of every policy. To define a policy, subclass it and override `score`.

    A row is used when it is created, and at each occurrence in a lookup (unless touch=False) or in apply_update. A
    change is not a use: upsert, accum and apply_gradients do not change the score of an existing row.

    initial_score: the old score that `score` gets for a new row, whose creation is its first use.
    clock: the unit of `now`: "steps" of the variable, or "seconds" since 1970.
    kind: the policy's name on disk; "custom" for user-defined policies.
    """

    kind: ClassVar[str] = "custom"
    initial_score: float = 0.0
    clock: str = "steps"
    _variable: Handle[ScoredRows] | None = None

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return the new scores (n,) float64 of rows that were just used; higher scores survive. NaN is refused.

        old_score: float64 (n,), one for each distinct row; a copy. count: int64 (n,), new uses, at least 1. now: the
        clock's time. Each element of the result must depend only on its own elements and now, not on the rest of the
        batch.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score(self, old_score, count, now)")

    @property
    def rule(self) -> ScoreRule:
        """The rule by which the hot table may compute this score itself."""
        return ScoreRule.CUSTOM

    def now(self, step: int) -> float:
        """Return the time of a use in this step: the step, or the seconds since 1970."""
        if self.clock == "steps":
            return float(step)
        moment = current_moment()
        return time.time() if moment is None else moment.seconds

    def checked_score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return score(...) as a new contiguous float64 array (n,).

        Raises TypeError unless it returns real numbers, ValueError for another shape or NaN, naming the policy.
        """
        what = f"{type(self).__name__}.score()"
        result = np.asarray(self.score(old_score.copy(), count, now))
        if result.dtype.kind not in "iuf":
            raise TypeError(f"{what} must return real numbers, got dtype {result.dtype}; return a float64 array")
        if result.shape != old_score.shape:
            raise ValueError(
                f"{what} must return one score for each row, shape {old_score.shape}, got {result.shape}; "
                "compute element by element, or fill with np.full_like(old_score, value)"
            )
        scores = np.array(result, np.float64, order="C")
        if np.isnan(scores).any():
            at = int(np.flatnonzero(np.isnan(scores))[0])
            raise ValueError(
                f"{what} must not return NaN, got it from old_score={old_score[at]}, count={count[at]}, now={now}; "
                "return -inf for a row that should leave first"
            )
        return scores

    def min_score(self, now: float) -> float:
        """Return the score below which rows have expired, so that any restriction removes them; -inf: none have."""
        return -math.inf

    def ranking(self, scores: Scores, values: npt.NDArray[Any]) -> Scores:
        """Return what restrict ranks rows by, (n,), without NaN: here their scores. values: embeddings (n, dim)."""
        return scores

    def bind(self: Self, variable: Handle[ScoredRows]) -> Self:
        """Return a shallow copy that is bound to this variable; the instance itself does not change.

        So one instance may be given to many variables; `variable.restrict_policy` is the bound copy.
        """
        bound = copy.copy(self)
        object.__setattr__(bound, "_variable", variable)
        return bound

    @property
    def variable(self) -> Handle[ScoredRows]:
        """The variable that this policy is bound to. Raises ValueError if it is not bound."""
        if self._variable is None:
            raise ValueError(
                f"{type(self).__name__} must be bound to a variable, got an unbound policy; "
                "create the variable with restrict_policy=..., then use variable.restrict_policy"
            )
        return self._variable

    def apply_update(self, keys: npt.ArrayLike) -> None:
        """Record one use for each occurrence of keys (any shape); missing keys are ignored."""
        inside(self.variable).record_uses(keys)

    def apply_restriction(self, num_reserved: int, trigger: int | None = None) -> int:
        """Keep the num_reserved rows with the highest scores, ties to larger keys; return the number removed.

        trigger: do nothing unless the variable holds more rows than this; None: always.
        Raises TypeError if an argument is not an int, ValueError if it is negative.
        """
        reserved = as_int(num_reserved, "num_reserved", 0, MAX_ROWS)
        bound = None if trigger is None else as_int(trigger, "trigger", 0, MAX_ROWS)
        return inside(self.variable).restrict(reserved, bound)

    def status(self, keys: npt.ArrayLike) -> Scores:
        """Return a copy of the scores of keys, float64 of keys.shape, NaN for missing keys. Records no use."""
        return inside(self.variable).scores(keys)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: "kind", and a built-in policy's parameters or the name of a user-defined class."""
        return {"kind": "custom", "class": _qualified_name(type(self))}


def _qualified_name(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"


def check_clock(policy: RestrictPolicy) -> None:
    """Raise ValueError for an unknown clock."""
    if policy.clock not in CLOCKS:
        raise ValueError(f"{type(policy).__name__} clock must be 'seconds' or 'steps', got {policy.clock!r}")
