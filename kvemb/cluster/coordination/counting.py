"""The steps of a variable that several clients use: each counts its own calls, and knows those of the others.

A client tells the coordinator its counts a few times a second, beside its calls, and hears those of the others. So a
step needs no question, one client's steps are those of one store, and the steps of several are as exact as their calls
of the last quarter of a second are simultaneous. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from kvemb.moment import Moment
from kvemb.restrict import RestrictPolicy


class Steps(NamedTuple):
    """Numbers of calls. uses: that recorded uses. training: steps of an optimizer that numbers them."""

    uses: int = 0
    training: int = 0

    def plus(self, other: Steps) -> Steps:
        """Return the sums."""
        return Steps(self.uses + other.uses, self.training + other.training)

    def up_to(self, other: Steps) -> Steps:
        """Return the larger number of each."""
        return Steps(max(self.uses, other.uses), max(self.training, other.training))


class Clock:
    """The steps of one variable for one client. others: what other clients have counted, and those before them."""

    def __init__(self, others: Steps) -> None:
        self._others, self._own = others, Steps()
        self._lock = threading.Lock()

    @property
    def steps(self) -> Steps:
        """The steps of all."""
        with self._lock:
            return self._others.plus(self._own)

    @property
    def own(self) -> Steps:
        """The steps of this client."""
        return self._own

    def hear(self, others: Steps) -> None:
        """Take over what the others have counted."""
        with self._lock:
            self._others = self._others.up_to(others)

    def now(self, policy: RestrictPolicy | None) -> Moment:
        """Return the moment of a call that records no use and takes no step."""
        return self._count(Steps(), policy)

    def use(self, policy: RestrictPolicy | None) -> Moment:
        """Count a call that records uses; returns its moment."""
        return self._count(Steps(1), policy)

    def train(self, policy: RestrictPolicy | None, counted: bool) -> Moment:
        """Return the moment of an optimizer's step; counted: whether the optimizer numbers it."""
        return self._count(Steps(0, int(counted)), policy)

    def _count(self, more: Steps, policy: RestrictPolicy | None) -> Moment:
        with self._lock:
            self._own = self._own.plus(more)
            uses, training = self._others.plus(self._own)
            # The copies of a policy that are on the shards do not know its epoch.
            return Moment(uses, time.time(), training if more.training else 0, int(getattr(policy, "epoch", 0)))


class Total:
    """The steps of one variable for the coordinator. begun: those that it had before all clients' calls."""

    def __init__(self, begun: Steps) -> None:
        self._begun = begun
        self._clients: dict[str, Steps] = {}
        self._lock = threading.Lock()

    def told(self, client: str, own: Steps) -> Steps:
        """Take over a client's count; return those of the others."""
        with self._lock:
            self._clients[client] = own.up_to(self._clients.get(client, Steps()))
            return self._sum(client)

    def steps(self) -> Steps:
        """Return the steps of all."""
        with self._lock:
            return self._sum(None)

    def _sum(self, but: str | None) -> Steps:
        total = self._begun
        for client, steps in self._clients.items():
            if client != but:
                total = total.plus(steps)
        return total
