"""Signals and exceptions from other threads at random moments of calls: every row is the model's (tests/storm.py)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import storm

# An exception of another thread may come in a finalizer, which Python then tells of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("way", storm.WAYS)
def test_interrupted_calls_have_happened_or_not(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "kvemb")
    assert storm.ride(tmp_path, way, seed=7, calls=12) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("way", storm.WAYS)
def test_interrupted_calls_have_happened_or_not_in_a_longer_history(way: str, tmp_path: Path) -> None:
    storm.ride(tmp_path, way, seed=100, calls=60)
