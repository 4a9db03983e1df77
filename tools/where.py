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

    def mask(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which rows satisfy the clauses, (n,) bool; the key range is not checked."""
        mask = np.ones(len(rows), np.bool_)
        for name, sign, number in self.clauses:
            mask &= _COMPARE[sign](getattr(rows, f"{name}s"), number)
        return mask

    def narrowed(self, first: int, last: int) -> tuple[int, int]:
        """Return the intersection of the key range with first..last; empty if its first is above its last."""
        return (
            first if self.first is None else max(first, self.first),
            last if self.last is None else min(last, self.last),
        )


def parse_where(texts: list[str]) -> Where:
    """Parse conditions such as "score >= 3 and step < 100" or "key in 0..999"; all must hold. Raises WrongUsage."""
    clauses: list[tuple[str, str, float]] = []
    first: int | None = None
    last: int | None = None
    for text in (part for each in texts for part in re.split(r"\band\b", each)):
        found = _CLAUSE.fullmatch(text)
        try:
            if ends := _RANGE.fullmatch(text):
                low, high = int(ends[1]), int(ends[2])
                first = low if first is None else max(first, low)
                last = high if last is None else min(last, high)
                continue
            if found is None:
                raise ValueError
            number: float = int(found[3]) if found[1] != "score" else float(found[3])
            if math.isnan(number):
                raise ValueError
        except ValueError:
            shown = text.strip() if len(text) < 80 else f"{text.strip()[:80]}..."
            raise WrongUsage(
                f"--where {shown!r} is not a condition; write for example 'score >= 3', 'step < 100', 'key in 0..999'"
            ) from None
        if found[1] == "key" and found[2] in ("<=", ">=", "<", ">", "==", "="):
            if found[2] in (">", ">=", "==", "="):
                low = int(number) + (found[2] == ">")
                first = low if first is None else max(first, low)
            if found[2] in ("<", "<=", "==", "="):
                high = int(number) - (found[2] == "<")
                last = high if last is None else min(last, high)
        else:
            clauses.append((found[1], found[2], number))
    return Where(tuple(clauses), first, last)
