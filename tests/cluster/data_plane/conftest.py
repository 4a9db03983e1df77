"""Servers of the data plane in this process, and links to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from callee import HOST, TOKEN, Callee

from kvemb.cluster.data_plane.links import Link
from kvemb.cluster.data_plane.served import Served
from kvemb.threads.pool import Threads


@pytest.fixture
def callee() -> Callee:
    """A callee."""
    return Callee()


@pytest.fixture
def served(callee: Callee) -> Iterator[Served]:
    """Its servers, on the node "here"."""
    served = Served(callee, TOKEN, "here", HOST)
    yield served
    callee.waiting.set()
    served.close()


@pytest.fixture(params=["here", "there"])
def way(request: pytest.FixtureRequest) -> str:
    """The node of the client."""
    return str(request.param)


@pytest.fixture
def linked(served: Served, way: str) -> Iterator[Callable[..., Link]]:
    """Make links to the callee."""
    made: list[Link] = []

    def link(token: bytes = TOKEN) -> Link:
        made.append(Link(lambda: served.reach(way), token, Threads(64)))
        return made[-1]

    yield link
    for each in made:
        each.close()
