"""Selects the few of a test's many cases that run every day; the others have the marker slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], first: int = 1) -> list[Any]:
    """Return the parameters of a test, with all but the first few marked slow."""
    return [value if at < first else pytest.param(value, marks=pytest.mark.slow) for at, value in enumerate(values)]
