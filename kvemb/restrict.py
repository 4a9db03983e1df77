"""Restrict policies: what makes one row matter more than another.

A policy turns the uses of a row into its score, one float64; the higher score survives, both in the hot tier (evict)
and in the table (restrict). A policy decides and never acts: bound to a variable, its methods delegate to it. Built-in
policies are frozen values. A user's is called from the thread that uses the variable, under that variable's lock.
"""

from __future__ import annotations

import copy
import enum
import math
import numbers
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.errors import UnsupportedFormat

Scores = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

CLOCKS = ("seconds", "steps")
Self = TypeVar("Self", bound="RestrictPolicy")


class ScoreRule(enum.IntEnum):
    """How a hot table computes a score inside its kernels. Handed to kernels; not on disk."""

    LAST_USE = 0  # score = now
    COUNT = 1  # score = old + uses
    CUSTOM = 2  # the table leaves scores alone; the policy's score() is called on distinct rows


class RestrictedVariable(Protocol):
    """What a policy asks of the variable it is bound to."""

    def _record_uses(self, keys: npt.ArrayLike) -> None: ...

    def _restrict(self, num_reserved: int, trigger: int | None) -> int: ...

    def _scores(self, keys: npt.ArrayLike) -> Scores: ...


class RestrictPolicy:
    """The base of every policy; subclass it and give `score` to make your own.

    A row is used when it is made, at each occurrence in a lookup (but with touch=False) and in apply_update. Changing
    it is no use: upsert, accum and apply_gradients leave the score of a row that exists as it is.

    initial_score: what `score` is given as the old score of a new row, whose creation is its first use.
    clock: what `now` counts: "steps" of the variable, or "seconds" since 1970.
    kind: the policy's name on disk; "custom" for all but the built-in ones.
    """

    kind: ClassVar[str] = "custom"
    initial_score: float = 0.0
    clock: str = "steps"
    _variable: RestrictedVariable | None = None

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return the new scores (n,) float64 of rows that were just used; the higher survives. NaN is refused.

        old_score: float64 (n,), one for each distinct row; a copy. count: int64 (n,), uses since, at least 1.
        now: the clock's time. Must depend on these alone, element by element: a row's batch must not matter.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score(self, old_score, count, now)")

    @property
    def rule(self) -> ScoreRule:
        """How the hot table may compute this score by itself."""
        return ScoreRule.CUSTOM

    def now(self, step: int) -> float:
        """Return the time of a use made in this step: the step, or the seconds since 1970."""
        return float(step) if self.clock == "steps" else time.time()

    def checked_score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return score(...) as fresh contiguous float64 (n,).

        Raises TypeError where it gives no real numbers, ValueError for another shape or NaN, naming the policy.
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

    def bind(self: Self, variable: RestrictedVariable) -> Self:
        """Return a shallow copy that serves this variable; the instance itself stays as it was.

        So one instance may be given to many variables; ask `variable.restrict_policy` for the one that is bound.
        """
        bound = copy.copy(self)
        object.__setattr__(bound, "_variable", variable)
        return bound

    @property
    def variable(self) -> RestrictedVariable:
        """The variable this policy is bound to. Raises ValueError when it is bound to none."""
        if self._variable is None:
            raise ValueError(
                f"{type(self).__name__} must be bound to a variable, got an unbound policy; "
                "create the variable with restrict_policy=..., then use variable.restrict_policy"
            )
        return self._variable

    def apply_update(self, keys: npt.ArrayLike) -> None:
        """Record one use of each occurrence of keys (any shape); keys that are missing are ignored."""
        self.variable._record_uses(keys)

    def apply_restriction(self, num_reserved: int, trigger: int | None = None) -> int:
        """Keep the num_reserved rows with the highest scores, ties to the larger key; return how many rows left.

        trigger: do nothing unless the variable holds more rows than this; None is always.
        Raises TypeError where one is not an int, ValueError where it is negative.
        """
        reserved = as_int(num_reserved, "num_reserved", 0)
        return self.variable._restrict(reserved, None if trigger is None else as_int(trigger, "trigger", 0))

    def status(self, keys: npt.ArrayLike) -> Scores:
        """Return the scores of keys, float64 of keys.shape, a copy; NaN for keys that are missing. Records no use."""
        return self.variable._scores(keys)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: "kind" and parameters of a built-in policy; of a user's, its class by name."""
        return {"kind": "custom", "class": _qualified_name(type(self))}


@dataclass(frozen=True)
class TimestampRestrictPolicy(RestrictPolicy):
    """The score is the time of the last use: least recently used rows leave first.

    clock: "seconds" (since 1970, so it goes on after a restart) or "steps", calls that recorded uses. What counts as a
    use: RestrictPolicy. The clock of a stored variable stays as it is.
    """

    kind: ClassVar[str] = "timestamp"

    clock: str = "seconds"

    def __post_init__(self) -> None:
        _check_clock(self)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return `now` for every row."""
        return np.full_like(old_score, now)

    @property
    def rule(self) -> ScoreRule:
        """LAST_USE, unless a subclass has a score of its own."""
        return ScoreRule.LAST_USE if type(self).score is TimestampRestrictPolicy.score else ScoreRule.CUSTOM

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the clock; of a subclass, its class by name."""
        if type(self) is not TimestampRestrictPolicy:
            return super().to_json()
        return {"kind": self.kind, "clock": self.clock}


@dataclass(frozen=True)
class FrequencyRestrictPolicy(RestrictPolicy):
    """The score is the number of uses: least frequently used rows leave first. Every occurrence in a batch counts.

    half_life: steps after which a use counts half; None: uses never fade. With it the score is log2 of the decayed
    count, in units fixed at step 0: log2 of the sum of 2**(step / half_life) over all uses. This is forward decay
    (Cormode, Shkapenyuk, Srivastava, Xu, "Forward Decay", ICDE 2009): scores of rows used at different times compare
    as they stand, rows not used need no update, and the logarithm keeps the sum from overflowing.

    A step is a call that recorded uses: a lookup. What counts as a use: RestrictPolicy; of upserts and gradient steps
    only those that make the row. The half-life of a stored variable stays as it is: its scores are of that scale.
    """

    kind: ClassVar[str] = "frequency"

    half_life: float | None = None

    def __post_init__(self) -> None:
        given = self.half_life
        if given is None:
            return
        if isinstance(given, (bool, np.bool_)) or not isinstance(given, numbers.Real):
            raise TypeError(f"FrequencyRestrictPolicy half_life must be None or a number of steps, got {brief(given)}")
        try:
            steps = float(given)
        except OverflowError:
            steps = math.inf
        if not 0 < steps < math.inf:
            raise ValueError(f"FrequencyRestrictPolicy half_life must be finite and above 0, got {brief(given)}")
        object.__setattr__(self, "half_life", steps)
        object.__setattr__(self, "initial_score", -math.inf)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return old_score + count, or with a half-life log2(2**old_score + count * 2**(now / half_life))."""
        if self.half_life is None:
            return old_score + count
        # logaddexp2 is max + log2(1 + 2**(min - max)): no overflow however late it is.
        scores: Scores = np.logaddexp2(old_score, np.log2(count) + now / self.half_life)
        return scores

    @property
    def rule(self) -> ScoreRule:
        """COUNT without a half-life, unless a subclass has a score or a start of its own; else CUSTOM."""
        plain = self.half_life is None and self.initial_score == 0.0
        return ScoreRule.COUNT if plain and type(self).score is FrequencyRestrictPolicy.score else ScoreRule.CUSTOM

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the half-life; of a subclass, its class by name."""
        if type(self) is not FrequencyRestrictPolicy:
            return super().to_json()
        return {"kind": self.kind, "half_life": self.half_life}


_KINDS: dict[str, type[RestrictPolicy]] = {
    kind.kind: kind for kind in (TimestampRestrictPolicy, FrequencyRestrictPolicy)
}


def as_policy(spec: Any) -> RestrictPolicy | None:
    """Return the policy of a `restrict_policy` argument: None, a RestrictPolicy, or a subclass (made with no argument).

    Raises TypeError for anything else, ValueError for an unknown clock or a NaN initial_score.
    """
    if spec is None:
        return None
    policy = spec
    if isinstance(spec, type) and issubclass(spec, RestrictPolicy):
        try:
            policy = spec()
        except TypeError as error:
            name = spec.__name__
            raise TypeError(f"restrict_policy {name} must be made with arguments: {error}; pass {name}(...)") from error
    if not isinstance(policy, RestrictPolicy):
        raise TypeError(
            f"restrict_policy must be None, a RestrictPolicy or a subclass of it, got {spec!r}; "
            "use TimestampRestrictPolicy or FrequencyRestrictPolicy from kvemb.restrict, or subclass RestrictPolicy"
        )
    if type(policy).score is RestrictPolicy.score:
        raise TypeError(f"restrict_policy {type(policy).__name__} must define score(self, old_score, count, now)")
    _check_clock(policy)
    if math.isnan(policy.initial_score):
        raise ValueError(f"{type(policy).__name__} initial_score must be a number, got NaN; -inf and inf are allowed")
    return policy


def policy_from_json(data: Mapping[str, Any] | None) -> RestrictPolicy | None:
    """Return the built-in policy that to_json() gave; None for None and for a user's own, which the user has to pass.

    Raises UnsupportedFormat for a kind or a parameter it does not know.
    """
    if data is None:
        return None
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind == "custom" and isinstance(data.get("class"), str) and len(data) == 2:
        return None
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise UnsupportedFormat(
            f"restrict policy must be of kind {', '.join(_KINDS)} or custom, got {brief(data)}; "
            "use the kvemb that wrote it"
        )
    try:
        return found(**{name: value for name, value in data.items() if name != "kind"})
    except (TypeError, ValueError) as error:
        raise UnsupportedFormat(f"restrict policy {brief(data)} cannot be read: {error}") from error


def policy_class_name(policy: RestrictPolicy | Mapping[str, Any] | None) -> str | None:
    """Return the name of a policy's class, of the policy or of its JSON, so that two can be compared; None for None.

    A built-in class goes by its kind, a user's by module and qualified name.
    """
    if policy is None:
        return None
    data = policy.to_json() if isinstance(policy, RestrictPolicy) else policy
    return str(data["class"] if data["kind"] == "custom" else data["kind"])


def _qualified_name(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"


def _check_clock(policy: RestrictPolicy) -> None:
    if policy.clock not in CLOCKS:
        raise ValueError(f"{type(policy).__name__} clock must be 'seconds' or 'steps', got {policy.clock!r}")
