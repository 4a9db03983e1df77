"""A variable and a model of it in plain NumPy, on one store or on many shards, for tests of clusters."""

from __future__ import annotations

from typing import Any

import kvemb
from kvemb.tools.stress.lockstep import LockstepChecker
from kvemb.tools.stress.model import Model

# What depends on every step and on when each was taken.
ADAM = kvemb.optimizers.Adam(0.5, bias_correction="global")
POLICY = kvemb.FrequencyRestrictPolicy(half_life=9.0)


def twin_of(place: Any, keys: Any, model: Model | None = None, *, policy: Any = POLICY) -> LockstepChecker:
    """Get the variable "table" of a store or cluster, and check it against a model from now on.

    keys: all that may be used. model: the model of its current state; None: it has no rows.
    """
    variable = place.get_variable("table", dim=2, optimizer=ADAM, restrict_policy=policy)
    given = {"initializer": variable.initializer, "optimizer": ADAM, "policy": policy}
    return LockstepChecker(variable, model or Model(keys, variable.value_dtype, 2, **given))
