"""Conditions on key, score and step that select rows: parsing, and evaluation on rows."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.bulk import Rows
from kvemb.tools.failures import WrongUsage

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_CLAUSE = re.compile(r"\s*(key|score|step)\s*(<=|>=|==|!=|<|>|=)\s*(\S+)\s*")
_RANGE = re.compile(r"\s*key\s+in\s+(-?\d+)\s*\.\.\s*(-?\d+)\s*")


@dataclass(frozen=True)
class Where:
    """A conjunction of clauses and a key range. first, last: the range's bounds, both inclusive; None: no bound."""

    clauses: tuple[tuple[str, str, float], ...] = ()
    first: int | None = None
    last: int | None = None

    def __bool__(self) -> bool:
        return bool(self.clauses) or self.first is not None or self.last is not None

    @property
    def has_key(self) -> bool:
        """Whether a condition is about keys."""
        return not (self.first is self.last is None) or any(name == "key" for name, _, _ in self.clauses)

    def mask(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows satisfy all, (n,) bool."""
        mask = self.in_range(rows.keys)
        for name, sign, number in self.clauses:
            mask &= _COMPARE[sign](getattr(rows, f"{name}s"), number)
        return mask

    def in_range(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which keys are in the key range, (n,) bool."""
        mask = np.ones(len(keys), np.bool_)
        if self.first is not None:
            mask &= keys >= self.first
        if self.last is not None:
            mask &= keys <= self.last
        return mask

    def narrowed(self, first: int | None, last: int | None) -> tuple[int | None, int | None]:
        """Return the intersection of the key range with first..last; empty if its first is above its last."""
        firsts = [each for each in (first, self.first) if each is not None]
        lasts = [each for each in (last, self.last) if each is not None]
        return max(firsts, default=None), min(lasts, default=None)


def parse_where(texts: list[str]) -> Where:
    """Parse conditions such as "score >= 3 and step < 100" or "key in 0..999"; all must hold. Raises WrongUsage."""
    clauses: list[tuple[str, str, float]] = []
    firsts: list[int] = []
    lasts: list[int] = []
    for text in (part for each in texts for part in re.split(r"\band\b", each)):
        try:
            if ends := _RANGE.fullmatch(text):
                firsts.append(int(ends[1]))
                lasts.append(int(ends[2]))
                continue
            found = _CLAUSE.fullmatch(text)
            if found is None:
                raise ValueError
            name, sign = found[1], found[2]
            number: float = float(found[3]) if name == "score" else int(found[3])
            if math.isnan(number):
                raise ValueError
        except ValueError:
            shown = text.strip() if len(text) < 80 else f"{text.strip()[:80]}..."
            raise WrongUsage(
                f"--where {shown!r} is not a condition; write for example 'score >= 3', 'step < 100', 'key in 0..999'"
            ) from None
        if name != "key" or sign == "!=":
            clauses.append((name, sign, number))
            continue
        if sign in (">", ">=", "==", "="):
            firsts.append(int(number) + (sign == ">"))
        if sign in ("<", "<=", "==", "="):
            lasts.append(int(number) - (sign == "<"))
    return Where(tuple(clauses), max(firsts, default=None), min(lasts, default=None))
