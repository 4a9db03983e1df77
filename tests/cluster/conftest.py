"""Clusters for tests, each in a directory of its own, checked at teardown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kvemb.cluster
from kvemb.limits import Limits

BUDGET = "4MiB"


@pytest.fixture
def open_cluster(limits: Limits, tmp_path: Any) -> Iterator[Callable[..., kvemb.cluster.Store]]:
    """kvemb.cluster.open with a small budget; what it opened is checked and closed at teardown."""
    opened: list[kvemb.cluster.Store] = []

    def opener(shards: int | None = 3, **arguments: Any) -> kvemb.cluster.Store:
        arguments = {
            "memory_budget": BUDGET,
            "limits": limits,
            "scratch": tmp_path / "scratch",
            "transport": "local",
            **arguments,
        }
        opened.append(kvemb.cluster.open(shards=shards, **arguments))
        return opened[-1]

    yield opener
    for cluster in opened:
        if not cluster.state.closed:
            try:
                cluster.check()
            finally:
                cluster.close()
    assert list((tmp_path / "scratch").glob("*")) == []


@pytest.fixture
def cluster(open_cluster: Callable[..., kvemb.cluster.Store]) -> kvemb.cluster.Store:
    """An empty cluster of three shards."""
    return open_cluster()


@pytest.fixture
def connect(
    open_cluster: Callable[..., kvemb.cluster.Store], tmp_path: Any
) -> Iterator[Callable[[], kvemb.cluster.Store]]:
    """Connect one more client to the cluster that has the test's series open; it ends at teardown."""
    made: list[kvemb.cluster.Store] = []

    def connected() -> kvemb.cluster.Store:
        made.append(kvemb.cluster.connect(tmp_path / "series", transport="local"))
        return made[-1]

    yield connected
    for each in made:
        each.close()
