"""A transport that loses calls and answers, and delivers some calls twice."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

import kvemb.cluster
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.coordination.coordinator import Coordinator
from kvemb.cluster.coordination.starting import OpenRequest, start
from kvemb.cluster.local import DirectTransport, make_in_process
from kvemb.cluster.transport import Transport, Unanswered

# The most faults in a row, so that no shard counts as lost.
MAX_IN_A_ROW = 3


class FaultyTransport:
    """A transport with random faults. share: of calls with a fault. counts: of each fault."""

    def __init__(self, transport: Transport, share: float, seed: int = 0) -> None:
        self.shards, self.share = transport.shards, share
        self._transport, self._chance = transport, np.random.default_rng(seed)
        self._here = threading.local()
        self.counts = {"lost": 0, "unanswered": 0, "twice": 0}
        self._drawing = threading.Lock()

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """See Transport."""
        in_a_row = getattr(self._here, "in_a_row", 0)  # a thread repeats its own calls
        with self._drawing:
            spared = in_a_row == MAX_IN_A_ROW or self._chance.random() >= self.share
            fault = self._chance.choice(list(self.counts))
        self._here.in_a_row = 0 if spared else in_a_row + 1
        if spared:
            return self._transport.call(shard, name, *arguments)
        self.counts[fault] += 1
        if fault != "lost":
            made = self._transport.call(shard, name, *arguments)
            if fault == "twice":
                again = self._transport.call(shard, name, *arguments)
                again.exception()
                return made
            made.exception()
        answer: Future[Any] = Future()
        answer.set_exception(Unanswered(f"{name} was {fault}"))
        return answer

    def ping(self, shard: int) -> Future[Any]:
        """See Transport."""
        return self._transport.ping(shard)

    def close(self) -> None:
        """See Transport."""
        self._transport.close()


class FaultyCluster:
    """A cluster with faults in the calls from clients to shards, and from clients to the coordinator.

    coordinator: the object itself. transports: to the shards; the last one is in use.
    """

    def __init__(self, folder: Path, shards: int, share: float, url: Any = None) -> None:
        self.folder, self.share, self.url = folder, share, url
        self.transports: list[FaultyTransport] = []
        request = OpenRequest(None if url is None else str(url), {}, shards, {"memory_budget": "4MiB"})
        self.coordinator: Coordinator = start(request, self._make, None)
        self.first = self.client(owner=True)

    def _make(self, meter: Any, plan: Any) -> FaultyTransport:
        made = make_in_process(self.folder / "scratch", meter, plan)
        self.transports.append(FaultyTransport(made, self.share, len(self.transports)))
        return self.transports[-1]

    def client(self, *, owner: bool = False) -> kvemb.cluster.Store:
        """Return one more client."""
        way = FaultyTransport(DirectTransport(self.coordinator), self.share, 99)
        cluster = Cluster(way, str(self.url or "faulty"))
        return kvemb.cluster.Store(cluster, series=self.url is not None, owner=owner)
