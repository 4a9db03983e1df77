"""Stores for tests: each in a directory of its own, its invariants checked at teardown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvemb
from kvemb.backends import rocks
from kvemb.tiers import dirty_snapshot, sizing

BUDGET = "8MiB"
Opener = Callable[..., kvemb.Store]


@pytest.fixture
def open_store() -> Iterator[Opener]:
    """kvemb.open with a small budget; every store opened is checked and closed at teardown."""
    opened: list[kvemb.Store] = []

    def opener(path: Path, **arguments: Any) -> kvemb.Store:
        arguments.setdefault("memory_budget", BUDGET)
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
def small_piles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piles, files and the room at the side so small that every wait and every file boundary is met."""
    monkeypatch.setattr(sizing, "MIN_SPILL_ROWS", 24)
    monkeypatch.setattr(sizing, "MAX_SPILL_ROWS", 24)
    monkeypatch.setattr(dirty_snapshot, "TAKE_BYTES", 1200)
    monkeypatch.setattr(rocks, "CROWDED_FILES", 10_000)
