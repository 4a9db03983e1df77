"""Small variables of one store, for calls on many of them."""

from __future__ import annotations

import numpy as np

import kvemb
from kvemb.optimizers import Adagrad

NAMES = ["a", "b", "c"]


def make_table(store, name, dim, **arguments):
    """Return a new variable of 100 rows, 16 of them hot."""
    arguments = {
        "optimizer": Adagrad(0.5, 0.1),
        "hot_rows": 16,
        "initializer": kvemb.RandomUniform(seed=dim),
    } | arguments
    variable = store.get_variable(name, dim=dim, **arguments)
    variable.upsert(np.arange(100), np.arange(100 * dim, dtype=np.float32).reshape(100, dim))
    return variable
