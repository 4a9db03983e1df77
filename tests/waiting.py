"""Waiting for a state that another thread or process brings about, however long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

# What ends a test that would hang.
PATIENCE_SECONDS = 120.0


def wait_until(true: Callable[[], object]) -> None:
    """Wait until a function returns something true; fails after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "the state that is waited for did not come"
        time.sleep(0.002)
