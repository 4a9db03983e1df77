"""A rank's calls of the shards for steps that it takes together with the others. Not thread-safe."""

from __future__ import annotations

from typing import NamedTuple

from kvemb.cluster.batches import divided
from kvemb.cluster.cluster import Cluster, StepPart
from kvemb.cluster.coordination.counting import ClientSteps, StepCounts
from kvemb.cluster.in_step.parts import JoinedNorm, Joint, Part
from kvemb.cluster.session import Session
from kvemb.engine.table import Table
from kvemb.timestamp import Timestamp


class RankPart(NamedTuple):
    """A part that a rank has put on shards. number: see Part. shards: those that have any of it.

    factors: of the rank's gradients of each table, by which they are multiplied when they are joined.
    """

    rank: int
    number: int
    shards: list[int]
    factors: list[float]


class RankClient:
    """A client that is one of a group of ranks. group: random text, the same for all. tables: in the same order for all
    ranks.
    """

    def __init__(self, cluster: Cluster, tables: list[Table], group: str, rank: int) -> None:
        self._cluster, self._tables, self._group, self._rank = cluster, tables, group, rank
        self._number = 0

    @property
    def generation(self) -> int:
        """The number of recoveries of which this client knows."""
        return self._cluster.session.generation

    @property
    def answer_seconds(self) -> float:
        """How long a shard may take for a call."""
        return self._cluster.session.calls.timeouts.most

    def put(self, steps: list[StepPart]) -> tuple[int, list[int]]:
        """Put gradients on the shards, in place of the last ones; returns the part's number, and its shards.

        Gradients of equal keys are summed, unless an admission counts them. Raises ShardLost, Closed.
        """
        session = self._cluster.begin_call()
        self._number += 1
        parts: dict[int, Part] = {}
        for table, keys, grads in steps:
            known = session.client_variable(table)
            for shard, given in divided(self._cluster.router, keys, grads, table.schema.dim, admits=known.admits):
                part = parts.setdefault(shard, Part(self._group, self._rank, self._number, {}))
                part.gradients[known.token] = given
        session.calls.each("put_part", {shard: (part,) for shard, part in parts.items()})
        return self._number, list(parts)

    def norms(self, parts: list[RankPart]) -> list[JoinedNorm]:
        """Return the norm of each table's joined gradients. parts: of all ranks, in their order. Raises ShardLost."""
        session = self._cluster.begin_call()
        moments = dict.fromkeys(self._tokens(session), Timestamp(0, 0.0))
        joints = self._joints(parts, moments)
        found = session.calls.each("joined_norms", {shard: (joint,) for shard, joint in joints.items()})
        sums = dict.fromkeys(moments, JoinedNorm())
        for norms in found.values():
            for token, norm in norms.items():
                sums[token] = sums[token].plus(norm)
        return list(sums.values())

    def step(self, parts: list[RankPart], trained: list[int]) -> list[Exception | None]:
        """Take the step; returns the error of each table, or None. parts: of all ranks, in their order.

        trained: the positions of the tables of which a rank has gradients. Only one rank calls this. Raises ShardLost.
        """
        session = self._cluster.begin_call()
        tokens, moments = self._tokens(session), dict[str, Timestamp]()
        for at in trained:
            table, clock = self._tables[at], self._clock(session, at)
            optimizer = table.operations.optimizer
            moments[tokens[at]] = clock.train(table.policy, optimizer is not None and optimizer.counts_steps)
        joints, failures = self._joints(parts, moments), dict[str, Exception]()
        with session.calls.stamped(joints) as stamp:
            found = session.calls.each("step_together", {shard: (stamp, joint) for shard, joint in joints.items()})
        for errors in found.values():
            for token, error in (errors or {}).items():
                failures.setdefault(token, error)
        return [failures.get(token) for token in tokens]

    def _joints(self, parts: list[RankPart], moments: dict[str, Timestamp]) -> dict[int, Joint]:
        """Return what to join on each shard that has any part."""
        joints: dict[int, Joint] = {}
        for shard in sorted({shard for part in parts for shard in part.shards}):
            here = [part for part in parts if shard in part.shards]
            factors = None
            if any(factor != 1.0 for part in here for factor in part.factors):
                tokens = self._tokens(self._cluster.session)
                factors = {token: [part.factors[at] for part in here] for at, token in enumerate(tokens)}
            joints[shard] = Joint(self._group, [(part.rank, part.number) for part in here], factors, moments)
        return joints

    def _tokens(self, session: Session) -> list[str]:
        return [session.client_variable(table).token for table in self._tables]

    def _clock(self, session: Session, at: int) -> ClientSteps:
        return session.client_variable(self._tables[at]).clock

    # The steps of the tables, which the ranks count as one client. The first rank counts, the others follow.

    def since(self) -> list[int]:
        """Return how many calls of this rank have recorded uses of each table since the last agreement."""
        session = self._cluster.begin_call()
        return [self._clock(session, at).since for at in range(len(self._tables))]

    def agree(self, uses: list[int]) -> None:
        """Count uses of the ranks, instead of this rank's own since the last agreement."""
        session = self._cluster.begin_call()
        for at, each in enumerate(uses):
            self._clock(session, at).agree(each)

    def steps(self) -> list[StepCounts]:
        """Return the steps of each table."""
        session = self._cluster.begin_call()
        return [self._clock(session, at).steps for at in range(len(self._tables))]

    def follow(self, steps: list[StepCounts]) -> None:
        """Take over the steps of the rank that counts."""
        session = self._cluster.begin_call()
        for at, each in enumerate(steps):
            self._clock(session, at).follow(each)
