"""Stores for tests: each in a directory of its own, its invariants checked at teardown."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvemb
from kvemb.defaults import DEFAULTS
from kvemb.limits import Limits

BUDGET = "8MiB"
Opener = Callable[..., kvemb.Store]


@pytest.fixture(scope="session", autouse=True)
def _foreground() -> None:
    """Ctrl-C means what it means in a terminal: processes of pytest-xdist are started with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """The limits of stores of a test: those that the marker `limits` gives, else the usual ones.

    With small ones, so many files in level 0 as small piles make hold no checkpoint up.
    """
    marker = request.node.get_closest_marker("limits")
    return Limits(**{"crowded_files": 10_000, **marker.kwargs}) if marker else Limits()


@pytest.fixture
def open_store(limits: Limits) -> Iterator[Opener]:
    """kvemb.open with a small budget; every store opened is checked and closed at teardown."""
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


@pytest.fixture
def no_default():
    """No default store, but those that the test makes."""
    before, DEFAULTS.stores[:] = DEFAULTS.stores[:], []
    yield
    DEFAULTS.stores[:] = before
