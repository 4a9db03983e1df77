"""The implementations of contracts.HotTable, for the files of its suite."""

from __future__ import annotations

from typing import Any

import pytest
from hot_suite import KINDS, available


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Any:
    """Each HotTable class in turn."""
    return available(request.param)
