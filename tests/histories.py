"""Random histories of a small table beside its model, for tests of what outlives an instant."""

from __future__ import annotations

from typing import Any

import numpy as np
from stress.lockstep import LockstepChecker
from stress.model import Model

import kvemb


def small_spill(rows: int) -> dict[str, int]:
    """Limits of memtables of a few times so many rows, and as little of all else that waits for the disk."""
    return {
        "memtable_rows": 4 * rows,
        "min_own_copies": rows,
        "max_own_copies": rows,
        "copied_rows": rows,
        "ahead_rows": rows // 2,
    }


# Slots, files and a snapshot's buffer so small that every wait and every file boundary is met: for the marker `limits`.
SMALL_PILES = {**small_spill(24), "snapshot_part_bytes": 1200, "table_file_bytes": 6000}
DIM = 3
KEYS = np.arange(900)
_WEIGHTS = {
    "upsert": 0.3,
    "lookup": 0.2,
    "train": 0.1,
    "step": 0.15,
    "remove": 0.1,
    "restrict": 0.04,
    "accum": 0.08,
    "clear": 0.01,
    "export": 0.02,
}


def checker_of(store: kvemb.Store, hot_rows: int, devices: Any = None, name: str = "table") -> LockstepChecker:
    """A new variable with slots and a policy, and its model. Each name has an optimizer of its own."""
    kinds = {"table": kvemb.optimizers.Adam, "other": kvemb.optimizers.RowWiseAdagrad, "late": kvemb.optimizers.Adagrad}
    optimizer, policy = kinds[name](0.5), kvemb.TimestampRestrictPolicy(clock="steps")
    variable = store.get_variable(
        name, dim=DIM, hot_rows=hot_rows, devices=devices, optimizer=optimizer, restrict_policy=policy
    )
    model = Model(KEYS, variable.value_dtype, DIM, initializer=variable.initializer, optimizer=optimizer, policy=policy)
    return LockstepChecker(variable, model)


def change(twin: LockstepChecker, chance: np.random.Generator, *, touching: bool = True) -> None:
    """One operation, on both. touching: lookups may count as uses."""
    keys = chance.choice(KEYS, chance.integers(1, 120))
    values = chance.standard_normal((len(keys), DIM)).astype(np.float32)
    what = chance.choice(list(_WEIGHTS), p=list(_WEIGHTS.values()))
    if what == "upsert":
        twin.upsert(keys, values)
    elif what == "lookup":
        twin.lookup(keys, touch=touching and bool(chance.integers(2)))
    elif what == "train":
        twin.apply_gradients(keys, values)
    elif what == "step":
        twin.lookup(keys, touch=touching)
        twin.apply_gradients(keys, values)
    elif what == "remove":
        twin.remove(keys[:20])
    elif what == "restrict":
        twin.restrict(int(chance.integers(300, 900)))
    elif what == "accum":
        distinct = np.unique(keys)
        old, exists = twin.variable.lookup(distinct, return_exists=True, touch=False)
        twin.accum(distinct, old, values[: len(distinct)], exists)
    elif what == "clear":
        twin.clear()
    else:
        twin.check_export()
