"""The load of `python tests/stress crash`: the calls, and the process that makes them until it is killed.

A seed determines the calls, so that the process under test and the one that checks it draw the same ones. The former
reports through a pipe which calls it begins and which were acknowledged; the latter applies them to a model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.limits import Limits
from stress.lockstep import LockstepChecker
from stress.model import Keys, Model, Values

BUDGET = "8MiB"
LIMITS = Limits()
DIM, HOT_ROWS, MAX_KEYS = 4, 300, 400
UNIVERSE = np.arange(-1000, 5000)
NAMES = ("users", "ads")

# The weight of each call. "checkpoint behind" is checkpoint(block=False).
_CALLS = {
    "upsert": 30, "train": 20, "accum": 12, "lookup": 15, "remove": 8, "restrict": 3, "clear": 0.3, "flush": 4,
    "checkpoint": 2, "checkpoint behind": 2,
}  # fmt: skip
_OPTIMIZER = kvemb.optimizers.Adagrad(0.1, 0.1)
DURABLE = ("flush", "checkpoint", "checkpoint behind")


@dataclass(frozen=True)
class Call:
    """One call of a variable, or of the store if its name is in DURABLE."""

    name: str
    variable: str
    keys: Keys
    values: Values
    more: Any


def calls(seed: int) -> Iterator[Call]:
    """Yield the calls of a round, endlessly."""
    chance = np.random.default_rng(seed)
    weights = np.array(list(_CALLS.values()), float)
    while True:
        name = list(_CALLS)[chance.choice(len(_CALLS), p=weights / weights.sum())]
        count = int(chance.integers(1, MAX_KEYS))
        start = int(chance.integers(len(UNIVERSE)))
        keys = UNIVERSE[(start + chance.integers(0, 2000, count)) % len(UNIVERSE)]
        values = chance.standard_normal((count, DIM)).astype(np.float32)
        more = {"restrict": int(chance.integers(2000, 6000)), "accum": chance.random(count) < 0.8}.get(name)
        yield Call(name, NAMES[int(chance.integers(len(NAMES)))], keys, values, more)


def open_variables(store: kvemb.Store) -> dict[str, kvemb.Variable]:
    """Return the variables of the load, by name; creates missing ones."""
    return {
        name: store.get_variable(name, dim=DIM, hot_rows=HOT_ROWS, optimizer=_OPTIMIZER, restrict_policy=_policy())
        for name in NAMES
    }


def model_of(variable: kvemb.Variable) -> Model:
    """Return an empty model of a variable of the load."""
    return Model(
        UNIVERSE, variable.value_dtype, DIM, initializer=variable.initializer, optimizer=_OPTIMIZER, policy=_policy()
    )


def _policy() -> kvemb.RestrictPolicy:
    return kvemb.TimestampRestrictPolicy(clock="steps")


def apply(call: Call, to: Model | kvemb.Variable, *, touching: bool) -> None:
    """Make a call on a variable, or on its model, which has the same methods."""
    if call.name == "upsert":
        to.upsert(call.keys, call.values)
    elif call.name == "train":
        to.apply_gradients(call.keys, call.values)
    elif call.name == "accum":
        to.accum(call.keys, call.values, call.values + 1, call.more)
    elif call.name == "lookup":
        to.lookup(call.keys, touch=touching)
    elif call.name == "remove":
        to.remove(call.keys[:50])
    elif call.name == "restrict":
        to.restrict(call.more)
    elif call.name == "clear":
        to.clear()


def checkpoint_of(folder: Path, seed: int, number: int) -> Path:
    """Return the path of the checkpoint of a call."""
    return folder / f"checkpoint-{seed}-{number}"


def work(folder: Path, seed: int, durability: Any, pipe: Connection) -> None:
    """Make the calls of a round on the store in a folder until killed, and report each through the pipe.

    "b 7": call 7 begins. "d 7": it returned. "p 7": the background checkpoint that call 7 started is complete.
    """

    def report(what: str, number: int) -> None:
        os.write(pipe.fileno(), f"{what} {number}\n".encode())

    store = kvemb.open(folder / "store", memory_budget=BUDGET, limits=LIMITS, durability=durability)
    variables = open_variables(store)
    store.flush()
    report("d", -1)
    pending: tuple[int, Any] | None = None
    for number, call in enumerate(calls(seed)):
        report("b", number)
        if pending is not None and (pending[1].done() or call.name in DURABLE):
            pending[1].result()
            report("p", pending[0])
            pending = None
        target = checkpoint_of(folder, seed, number)
        if call.name == "flush":
            store.flush()
        elif call.name == "checkpoint":
            store.checkpoint(target)
        elif call.name == "checkpoint behind":
            pending = number, store.checkpoint(target, block=False)
        else:
            apply(call, variables[call.variable], touching=durability == "checkpoint")
        report("d", number)


def check_equal(variable: kvemb.Variable, model: Model) -> None:
    """Compare every row, and the number of rows. Raises Difference."""

    twin = LockstepChecker(variable, model)
    twin.check_size()
    twin.check_export()
