"""The steps of a variable that several clients use: each counts its own calls, and knows the counts of the others.

A few times a second, while it makes calls, a client sends its counts to the coordinator and receives those of the
others. So no step waits for the coordinator. With one client, steps are those of a single store; with several, a client
may not know the others' steps of the last quarter of a second. Ranks that train in step (kvemb.cluster.in_step) count
as one client: one of them counts, and the others follow its counts. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from kvemb.restrict import RestrictPolicy
from kvemb.timestamp import Timestamp


class StepCounts(NamedTuple):
    """Numbers of calls. uses: that recorded uses. training: steps of an optimizer that counts them."""

    uses: int = 0
    training: int = 0

    def plus(self, other: StepCounts) -> StepCounts:
        """Return the sum of each."""
        return StepCounts(self.uses + other.uses, self.training + other.training)

    def up_to(self, other: StepCounts) -> StepCounts:
        """Return the maximum of each."""
        return StepCounts(max(self.uses, other.uses), max(self.training, other.training))


# A variable's steps, by its token.
StepsByToken = dict[str, StepCounts]


class ClientCounts(NamedTuple):
    """What a client has counted. generation: the number of recoveries of which it knows. client: its identity."""

    generation: int
    client: str
    steps: StepsByToken


class ClientSteps:
    """The steps of one variable for one client. others: counts of the other clients and of earlier ones.

    follows: whether another client counts the uses of this one, because both train in step.
    """

    def __init__(self, others: StepCounts, *, follows: bool = False) -> None:
        self._others, self._own, self.follows = others, StepCounts(), follows
        self._since = 0  # its uses since the last agreement
        self._lock = threading.Lock()

    @property
    def steps(self) -> StepCounts:
        """The steps of all clients."""
        with self._lock:
            return self._sum()

    def _sum(self) -> StepCounts:
        return self._others.plus(self._own).plus(StepCounts(self._since if self.follows else 0))

    @property
    def own(self) -> StepCounts:
        """The steps of this client."""
        return self._own

    def hear(self, others: StepCounts) -> None:
        """Store the counts of the others."""
        with self._lock:
            if not self.follows:
                self._others = self._others.up_to(others)

    # Ranks that train in step.

    @property
    def since(self) -> int:
        """The uses of this client since the last agreement."""
        return self._since

    def agree(self, uses: int) -> None:
        """Count these uses of ranks in step, instead of this client's own since the last agreement."""
        with self._lock:
            self._own = self._own.plus(StepCounts(uses - self._since))
            self._since = 0

    def follow(self, steps: StepCounts) -> None:
        """Take over the steps on which ranks agreed, and count no own uses any more."""
        with self._lock:
            self.follows, self._since = True, 0
            self._others = StepCounts(steps.uses - self._own.uses, steps.training - self._own.training)

    def now(self, policy: RestrictPolicy | None) -> Timestamp:
        """Return the timestamp of a call that records no use and takes no step."""
        return self._count(StepCounts(), policy)

    def use(self, policy: RestrictPolicy | None) -> Timestamp:
        """Count a call that records uses; returns its timestamp."""
        return self._count(StepCounts(1), policy)

    def train(self, policy: RestrictPolicy | None, counted: bool) -> Timestamp:
        """Return the timestamp of an optimizer's step. counted: whether the optimizer counts its steps."""
        return self._count(StepCounts(0, int(counted)), policy)

    def _count(self, more: StepCounts, policy: RestrictPolicy | None) -> Timestamp:
        with self._lock:
            self._since += more.uses
            self._own = self._own.plus(StepCounts(0, more.training) if self.follows else more)
            uses, training = self._sum()
            # The policy's copies on the shards do not know its epoch.
            return Timestamp(uses, time.time(), training if more.training else 0, int(getattr(policy, "epoch", 0)))


class TotalSteps:
    """The steps of one variable for the coordinator. begun: its steps before any client's call."""

    def __init__(self, begun: StepCounts) -> None:
        self._begun = begun
        self._clients: dict[str, StepCounts] = {}
        self._lock = threading.Lock()

    def told(self, client: str, own: StepCounts) -> StepCounts:
        """Store a client's counts; returns those of the others."""
        with self._lock:
            self._clients[client] = own.up_to(self._clients.get(client, StepCounts()))
            return self._sum(client)

    def steps(self) -> StepCounts:
        """Return the steps of all clients."""
        with self._lock:
            return self._sum(None)

    def _sum(self, but: str | None) -> StepCounts:
        total = self._begun
        for client, steps in self._clients.items():
            if client != but:
                total = total.plus(steps)
        return total
