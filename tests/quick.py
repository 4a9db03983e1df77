"""Selects the few of a test's many cases that run every day; the others have the marker slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], first: int = 1, *, several: bool = False) -> list[Any]:
    """Return the cases of a test, with all but the first few marked slow. several: each is a tuple of parameters."""
    cases = [pytest.param(*(value if several else (value,))) for value in values]
    return [*cases[:first], *(case._replace(marks=[pytest.mark.slow]) for case in cases[first:])]
