"""The parts of a step that ranks have put on a shard, and the joined gradients.

A part stays until its rank puts the next one, or until the step is taken. If it arrives again, nothing changes.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from kvemb import registry
from kvemb.cluster.messages import ChangeRequest
from kvemb.cluster.transport import ShardFailed
from kvemb.contracts import Values
from kvemb.rows.hashing import Keys, Unique
from kvemb.timestamp import Timestamp

# The groups whose parts are kept, the most recent ones. A group that ended may leave the parts of one step.
MAX_GROUPS = 64


class Part(NamedTuple):
    """A rank's gradients for one shard. group: random text. number: counts the parts of this rank, from 1.

    gradients: of each variable, by its token: keys (n,), gradients (n, dim).
    """

    group: str
    rank: int
    number: int
    gradients: dict[str, tuple[Keys, Values]]


class Joint(NamedTuple):
    """Which parts to join. parts: rank and number of each, in the order of ranks. moments: of the step, by token.

    factors: by token, the factor of each part's gradients; None: none is multiplied.
    """

    group: str
    parts: list[tuple[int, int]]
    factors: dict[str, list[float]] | None
    moments: dict[str, Timestamp]


class JoinedNorm(NamedTuple):
    """What clipping needs of joined gradients, with those of equal keys summed. squares: their sum.

    largest: the largest absolute value. finite: whether all values are.
    """

    squares: float = 0.0
    largest: float = 0.0
    finite: bool = True

    def plus(self, other: JoinedNorm) -> JoinedNorm:
        """Return that of both together."""
        largest = float(np.maximum(self.largest, other.largest))  # a NaN stays
        return JoinedNorm(self.squares + other.squares, largest, self.finite and other.finite)

    def times(self, factor: float) -> JoinedNorm:
        """Return that of the gradients multiplied by a number."""
        return JoinedNorm(self.squares * factor**2, self.largest * abs(factor), self.finite)


class Parts:
    """The parts of all groups on one shard."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, dict[int, Part]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, part: Part) -> None:
        """Keep a part in place of the rank's last one."""
        with self._lock:
            of_group = self._groups.setdefault(part.group, {})
            self._groups.move_to_end(part.group)
            if part.rank not in of_group or of_group[part.rank].number < part.number:
                of_group[part.rank] = part
            if len(self._groups) > MAX_GROUPS:
                self._groups.popitem(last=False)

    def norms(self, joint: Joint) -> dict[str, JoinedNorm]:
        """Return the norm of joined gradients, by token, of the variables that have any. Raises ShardFailed."""
        found = {token: self._joined(joint, token) for token in joint.moments}
        return {token: _norm(*each) for token, each in found.items() if each is not None}

    def take(self, joint: Joint) -> list[ChangeRequest]:
        """Return the steps of the variables that have gradients, and forget all parts of the group.

        Raises ShardFailed.
        """
        joined = {token: self._joined(joint, token) for token in joint.moments}
        changes = [
            ChangeRequest(token, "apply_gradients", given, joint.moments[token])
            for token, given in joined.items()
            if given is not None
        ]
        with self._lock:
            of_group = self._groups[joint.group]
            # Their numbers stay: a part that arrives again later is not new.
            of_group.update({rank: part._replace(gradients={}) for rank, part in of_group.items()})
        return changes

    def _joined(self, joint: Joint, token: str) -> tuple[Keys, Values] | None:
        """Return a variable's keys and gradients, those of the ranks one after the other; None: there are none."""
        with self._lock:
            there = self._groups.get(joint.group, {})
            found = [there.get(rank) for rank, _ in joint.parts]
        joined: list[tuple[Keys, Values]] = []
        for at, ((rank, number), part) in enumerate(zip(joint.parts, found, strict=True)):
            if part is None or part.number != number:
                # Another shard may take the step meanwhile, so the cluster cannot go on.
                raise ShardFailed(f"it does not have the part of rank {rank} of a step that all ranks take together")
            if token in part.gradients:
                keys, grads = part.gradients[token]
                factor = 1.0 if joint.factors is None else joint.factors[token][at]
                joined.append((keys, grads if factor == 1.0 else grads * grads.dtype.type(factor)))
        if len(joined) < 2:
            return joined[0] if joined else None
        return np.concatenate([keys for keys, _ in joined]), np.concatenate([grads for _, grads in joined])


def _norm(keys: Keys, grads: Values) -> JoinedNorm:
    if (distinct := Unique(keys)).repeated:
        sums = np.empty((len(distinct.keys), grads.shape[1]), grads.dtype)
        none = np.empty(0, grads.dtype)
        registry.row_kernels().row_gradients(distinct.sums, np.arange(len(grads)), none, grads, sums)
        grads = sums
    largest = float(np.abs(grads).max(initial=0))
    return JoinedNorm(float(np.square(grads, dtype=np.float64).sum()), largest, bool(np.isfinite(grads).all()))
