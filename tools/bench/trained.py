"""Tables that benchmarks train: how they are opened, loaded and trained. A step pulls every row towards one target."""

from __future__ import annotations

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, batches_of_ids, values_of

LEARNING_RATE = 0.05
EPSILON = 1e-10
LOAD_BATCH = 65_536


def cell_bytes(dim: int) -> int:
    """Return the bytes of a hot row of a table to train: with its slot, key, score, step, flags and digest."""
    return 8 * dim + 26


def record_bytes(dim: int) -> int:
    """Return the bytes of such a row on disk: with its slot, its key and its record's header."""
    return 8 * dim + 8 + 17


def adagrad() -> kvemb.optimizers.Adagrad:
    """Return the optimizer of trained tables, whose steps PyTorch's and those by hand are."""
    return kvemb.optimizers.Adagrad(LEARNING_RATE, initial_accumulator_value=0.0, epsilon=EPSILON)


def open_table(store: kvemb.Store, dim: int, hot_rows: int | None = None, name: str = "trained") -> kvemb.Variable:
    """Return a variable to train, which is made if it is missing. hot_rows: None if it may grow."""
    policy = kvemb.FrequencyRestrictPolicy()
    return store.get_variable(name, dim=dim, restrict_policy=policy, optimizer=adagrad(), hot_rows=hot_rows)


def load(variable: kvemb.Variable, rows: int) -> None:
    """Upsert the values of the ids of ranks 0 .. rows - 1."""
    for ids in batches_of_ids(rows, LOAD_BATCH):
        variable.upsert(ids, values_of(ids, variable.dim))


def train_step(var: kvemb.Variable, ids: Ids, upcoming: Ids | None, pull: Floats) -> None:
    """Take one step towards pull (dim,). upcoming: the next batch's keys to prefetch, or None."""
    values = var.lookup(ids)
    if upcoming is not None:
        var.prefetch(upcoming)
    var.apply_gradients(ids, values - pull)


def target(dim: int) -> Floats:
    """Return the row (dim,) that training pulls towards."""
    return np.linspace(-1.0, 1.0, dim, dtype=np.float32)
