"""The variables of the tests of calls on many tables."""

from __future__ import annotations

import pytest
from small_tables import NAMES, make_table


@pytest.fixture
def tables(store):
    """Three variables of 100 rows each, 16 of them hot."""
    return [make_table(store, name, dim) for name, dim in zip(NAMES, (2, 3, 4), strict=True)]
