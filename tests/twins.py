"""A variable and a model of it in plain NumPy, on one store or on many shards, for tests of clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from stress.lockstep import LockstepChecker
from stress.model import Model

import kvemb

# What depends on every step and on when each was taken.
ADAM = kvemb.optimizers.Adam(0.5, bias_correction="global")
POLICY = kvemb.FrequencyRestrictPolicy(half_life=9.0)


class Fading(kvemb.RestrictPolicy):
    """A user's policy."""

    clock = "steps"

    def score(self, old_score: Any, count: Any, now: float) -> Any:
        """Return half the old score, the uses, and a little of the time."""
        return old_score / 2 + count + now / 1024


def train(twin: LockstepChecker, seed: int, steps: int = 4) -> None:
    """Make calls that change rows, slots, scores and steps, then restrict the table."""
    chance = np.random.default_rng(seed)
    for _ in range(steps):
        keys = chance.choice(twin.model.universe, 60)
        values = chance.standard_normal((60, 2)).astype(np.float32)
        twin.upsert(keys[:20], values[:20])
        twin.apply_gradients(keys, values)
        twin.accum(keys, values, 2 * values, chance.random(60) < 0.5)
        twin.lookup(chance.choice(twin.model.universe, 30), touch=True)
        twin.use(keys[:9])
        twin.remove(keys[:4])
    twin.restrict(twin.model.size - 3)


def twin_of(place: Any, keys: Any, model: Model | None = None, *, policy: Any = POLICY) -> LockstepChecker:
    """Get the variable "table" of a store or cluster, and check it against a model from now on.

    keys: all that may be used. model: the model of its current state; None: it has no rows.
    """
    variable = place.get_variable("table", dim=2, optimizer=ADAM, restrict_policy=policy)
    given = {"initializer": variable.initializer, "optimizer": ADAM, "policy": policy}
    return LockstepChecker(variable, model or Model(keys, variable.value_dtype, 2, **given))
