"""A transport that loses calls and answers, and delivers some calls twice."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np

from kvemb.cluster.local import LocalTransport
from kvemb.cluster.transport import Unanswered

# So that no shard counts as lost.
MOST_IN_A_ROW = 3


class FaultyTransport:
    """A LocalTransport with faults. share: of calls that meet one; they are drawn. counts: of each fault."""

    def __init__(self, transport: LocalTransport, share: float, seed: int = 0) -> None:
        self.shards, self.share = transport.shards, share
        self._transport, self._chance = transport, np.random.default_rng(seed)
        self._here = threading.local()
        self.counts = {"lost": 0, "unanswered": 0, "twice": 0}

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """See Transport."""
        in_a_row = getattr(self._here, "in_a_row", 0)  # a thread repeats its own calls
        if in_a_row == MOST_IN_A_ROW or self._chance.random() >= self.share:
            self._here.in_a_row = 0
            return self._transport.call(shard, name, *arguments)
        self._here.in_a_row = in_a_row + 1
        fault = self._chance.choice(list(self.counts))
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

    def close(self) -> None:
        """See Transport."""
        self._transport.close()
