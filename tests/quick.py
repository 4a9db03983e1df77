"""Of many cases of one test, the few that run every day; the others bear the marker slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], first: int = 1) -> list[Any]:
    """Return the parameters of a test, of which all but the first few are slow."""
    return [value if at < first else pytest.param(value, marks=pytest.mark.slow) for at, value in enumerate(values)]
