"""Whole rows to load, and the expected content after a load, as a dict."""

from __future__ import annotations

from typing import Any

import numpy as np

import kvemb
from kvemb.bulk import Rows

DIM = 2
KEY, VALUE = np.zeros(1, np.int64), np.zeros((1, DIM), np.float32)
Model = dict[int, tuple[bytes, ...]]


def table_of(store: kvemb.Store, key_dtype: str = "int64", hot_rows: int | None = 64) -> kvemb.Variable:
    return store.get_variable(
        "table", key_dtype, dim=DIM, hot_rows=hot_rows, optimizer=kvemb.optimizers.Adagrad(0.5, 0.25)
    )


def rows(keys: Any, version: float, dtype: str = "int64") -> Rows:
    keys = np.asarray(keys, dtype)
    values = np.repeat(keys.astype(np.float32)[:, None] + np.float32(version), DIM, axis=1)
    return Rows(
        keys, values, {"accumulator": values * 2}, np.full(len(keys), float(version)), np.full(len(keys), int(version))
    )


def model_of(batches: Any) -> Model:
    """Return all rows of a variable, by key, as bytes."""
    found: Model = {}
    for each in batches:
        for at, key in enumerate(each.keys.tolist()):
            assert key not in found
            found[key] = (
                each.values[at].tobytes(),
                each.slots["accumulator"][at].tobytes(),
                each.scores[at].tobytes(),
                each.steps[at].tobytes(),
            )
    return found


def merged(model: Model, batches: list[Rows], conflict: str) -> Model:
    result = dict(model)
    for each in batches:
        for at in range(len(each)):
            slots = {"accumulator": each.slots["accumulator"][at : at + 1]}
            columns = (column[at : at + 1] for column in (each.keys, each.values, each.scores, each.steps))
            keys, values, scores, steps = columns
            row = model_of([Rows(keys, values, slots, scores, steps)])
            result = row | result if conflict == "keep" else result | row
    return result
