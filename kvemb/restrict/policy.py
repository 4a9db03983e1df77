"""The base class of restrict policies.

A policy turns the uses of a row into its score, one float64; the higher score survives, both in the hot tier (evict)
and in the table (restrict). A policy only decides; when it is bound to a variable, its methods delegate to that
variable. A user-defined policy is called on the thread that uses the variable, under that variable's lock.

apply_update, apply_restriction and status follow tfra.dynamic_embedding.RestrictPolicy.
"""

from __future__ import annotations

import copy
import enum
import math
import time
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from kvemb.checks.declared import Declared, as_json
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_ROWS
from kvemb.handle import Handle, inside
from kvemb.timestamp import current_timestamp

Scores = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

CLOCKS = ("seconds", "steps")


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


class RestrictPolicy(Declared):
    """The base of every policy: it turns the uses of a row into a score, and rows with higher scores survive.

    To define a policy, subclass it and override `score`. A row is used when it is created, and at each occurrence in a
    lookup (unless touch=False) or in apply_update. A change is not a use: upsert, accum and apply_gradients do not
    change the score of an existing row.

    A policy is given to a variable when it is opened. `variable.restrict_policy` is a copy that is bound to the
    variable: call its methods, such as apply_restriction. They also raise what calls of a variable raise.

    Attributes:
        initial_score: The old score that `score` gets for a new row, whose creation is its first use. Default: 0.0.
        clock: The unit of `now`: "steps" of the variable, or "seconds" since 1970. Default: 'steps'.
        kind: The policy's name on disk; "custom" for user-defined policies.

    Example:
        >>> class LastStep(kvemb.RestrictPolicy):
        ...     def score(self, old_score, count, now):
        ...         return np.full_like(old_score, now)
        >>> items = store.get_variable("items", dim=2, restrict_policy=LastStep())
        >>> items.upsert([1, 2, 3], [[1, 1], [2, 2], [3, 3]])
        >>> _ = items.lookup([2, 3])
        >>> items.restrict_policy.apply_restriction(2)
        1
        >>> items.lookup([1, 2, 3], return_exists=True)[1]
        array([False,  True,  True])
    """

    kind: ClassVar[str] = "custom"
    initial_score: float = 0.0
    clock: str = "steps"
    _variable: Handle[ScoredRows] | None = None

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return the new scores of rows that were just used; higher scores survive.

        Each element of the result must depend only on its own elements and now, not on the rest of the batch.

        Args:
            old_score: float64 (n,), one for each distinct row; a copy.
            count: int64 (n,), new uses, at least 1.
            now: The clock's time.

        Returns:
            float64 (n,), without NaN.

        Raises:
            NotImplementedError: The policy does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score(self, old_score, count, now)")

    @property
    def rule(self) -> ScoreRule:
        """The rule by which the hot table may compute this score itself: that of the class that defines `score`."""
        scoring = next(kind for kind in type(self).__mro__ if "score" in vars(kind))
        plain = self.initial_score == 0
        return vars(scoring).get("_rule", ScoreRule.CUSTOM) if plain else ScoreRule.CUSTOM

    def now(self, step: int) -> float:
        """Return the time of a use in this step.

        Args:
            step: The variable's step.

        Returns:
            The step, or the seconds since 1970, as `clock` says.
        """
        if self.clock == "steps":
            return float(step)
        timestamp = current_timestamp()
        return time.time() if timestamp is None else timestamp.seconds

    def min_score(self, now: float) -> float:
        """Return the score below which rows have expired, so that any restriction removes them.

        Args:
            now: The clock's time.

        Returns:
            The score; -inf if no row expires.
        """
        return -math.inf

    def ranking(self, scores: Scores, values: npt.NDArray[Any]) -> Scores:
        """Return what restrict ranks rows by: here their scores.

        Args:
            scores: The rows' scores, float64 (n,).
            values: The rows' embeddings, (n, dim).

        Returns:
            float64 (n,), without NaN.

        Raises:
            TypeError, ValueError: Never here. restrict passes on what an override raises.
        """
        return scores

    def bind(self, variable: Handle[ScoredRows]) -> Self:
        """Return a shallow copy that is bound to a variable; the instance itself does not change.

        So one instance may be given to many variables.

        Args:
            variable: The variable.

        Returns:
            The bound copy, which is `variable.restrict_policy`.
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
        """Record one use for each occurrence of keys; missing keys are ignored.

        Args:
            keys: Integers of any shape.

        Raises:
            TypeError: keys are not integers that fit the key dtype.
            ValueError: The policy is not bound to a variable, or the variable was opened without its user-defined
                policy.
        """
        inside(self.variable).record_uses(keys)

    def apply_restriction(self, num_reserved: int, trigger: int | None = None) -> int:
        """Keep the rows with the highest scores, and remove all others.

        Of rows with equal scores, those with larger keys are kept.

        Args:
            num_reserved: The number of rows to keep.
            trigger: Do nothing unless the variable holds more rows than this. None: always restrict. Default: None.

        Returns:
            The number of rows removed.

        Raises:
            TypeError: An argument is not an int.
            ValueError: An argument is negative, the policy is not bound to a variable, or the variable was opened
                without its user-defined policy.
            MemoryError: A GPU lacks memory. Rows that were removed before stay removed; another call removes the rest.
        """
        reserved = as_int(num_reserved, "num_reserved", 0, MAX_ROWS)
        bound = None if trigger is None else as_int(trigger, "trigger", 0, MAX_ROWS)
        return inside(self.variable).restrict(reserved, bound)

    def status(self, keys: npt.ArrayLike) -> Scores:
        """Return the scores of keys. Records no use.

        Args:
            keys: Integers of any shape.

        Returns:
            A copy, float64 of keys' shape; NaN for missing keys.

        Raises:
            TypeError: keys are not integers that fit the key dtype.
            ValueError: The policy is not bound to a variable.
        """
        return inside(self.variable).scores(keys)

    def continuing(self, stored: RestrictPolicy, step: int) -> RestrictPolicy | None:
        """Return this policy such that it goes on with scores that another one has given; None if it cannot.

        Args:
            stored: The policy with which the variable is stored, of the same class.
            step: The variable's step.

        Returns:
            A policy whose scores are on the same scale as those of `stored`; None if the scales differ.

        Raises:
            TypeError, ValueError: Never here; opening the variable passes on what an override raises.
        """
        return self if self.to_json() == stored.to_json() else None

    def to_json(self) -> dict[str, Any]:
        """Return the policy as plain JSON.

        Returns:
            A dict of "kind", and a built-in policy's parameters or the name of a user-defined class.
        """
        made = type(self)
        if made.__module__.startswith(f"{__package__}."):
            return as_json(self, "kind", self.kind)
        return {"kind": "custom", "class": f"{made.__module__}.{made.__qualname__}"}


def checked_score(policy: RestrictPolicy, old_score: Scores, count: Counts, now: float) -> Scores:
    """Return the result of a policy's score() as a new contiguous float64 array. Raises TypeError, ValueError."""
    what = f"{type(policy).__name__}.score()"
    result = np.asarray(policy.score(old_score.copy(), count, now))
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
