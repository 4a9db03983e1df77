"""Stores for tests: each in a directory of its own, its invariants checked at teardown.

The directories are in memory where there is room, which saves a third of the time; TMPDIR=/tmp puts them on a disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import kvemb
from kvemb.defaults import DEFAULTS
from kvemb.limits import Limits

BUDGET = "8MiB"
Opener = Callable[..., kvemb.Store]
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 4 << 30


def pytest_configure() -> None:
    """Let tests, and processes that they start, use a filesystem in memory; no test fails because a machine is busy."""
    settings.register_profile("kvemb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("kvemb")
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


@pytest.fixture(scope="session", autouse=True)
def _foreground() -> None:
    """Ctrl-C means what it means in a terminal: processes of pytest-xdist are started with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """The limits of a test's stores: those that the marker `limits` gives, else the usual ones.

    Small slots make many files in level 0 of RocksDB; crowded_files is so large that no checkpoint waits for fewer.
    """
    marker = request.node.get_closest_marker("limits")
    return Limits(**{"crowded_files": 10_000, **marker.kwargs}) if marker else Limits()


@pytest.fixture
def open_store(limits: Limits, tmp_path: Path) -> Iterator[Opener]:
    """kvemb.open with a small budget; every store opened is checked and closed at teardown, while tmp_path is there."""
    opened: list[kvemb.Store] = []

    def opener(path: Path, **arguments: Any) -> kvemb.Store:
        arguments = {"memory_budget": BUDGET, "limits": limits, **arguments}
        opened.append(kvemb.open(path, **arguments))
        return opened[-1]

    yield opener
    for store in opened:
        if not store.state.closed:
            try:
                if store.state.cause is None:
                    store.check()
            finally:
                store.close()


@pytest.fixture
def store(open_store: Opener, tmp_path: Path) -> kvemb.Store:
    """An empty store, also the path tmp_path / "store"."""
    return open_store(tmp_path / "store")


@pytest.fixture(params=["rocks", "memory", "two devices"])
def make(request: pytest.FixtureRequest, store: kvemb.Store) -> Callable[..., kvemb.Variable]:
    """A function that makes a variable with 16 hot rows, its cold rows and its devices being one of several kinds."""
    numbers = iter(range(100))
    kinds = {"memory": {"kv_creator": kvemb.MemoryCreator()}, "two devices": {"devices": ["cpu", "/CPU:0"]}}

    def factory(**arguments: Any) -> kvemb.Variable:
        chosen = {"dim": 3, "hot_rows": 16, **kinds.get(request.param, {}), **arguments}
        return store.get_variable(f"table{next(numbers)}", **chosen)

    return factory


@pytest.fixture
def no_default():
    """No default store, but those that the test makes."""
    before, DEFAULTS.stores[:] = DEFAULTS.stores[:], []
    yield
    DEFAULTS.stores[:] = before
