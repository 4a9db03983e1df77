"""Stores whose rows contain their version, and series of their checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

import kvemb

DIM = 3


def fill(store: kvemb.Store, version: int, keys: Any = None) -> None:
    table = store.get_variable("table", dim=DIM, hot_rows=64)
    keys = np.arange(2000) if keys is None else np.asarray(keys)
    table.upsert(keys, np.full((len(keys), DIM), version, np.float32))


def rows_of(checkpoint: kvemb.Checkpoint) -> dict[int, float]:
    with kvemb.open(checkpoint, read_only=True, memory_budget="4MiB") as store:
        keys, values = store.variables["table"].export()
        return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


def make(store: kvemb.Store, manager: kvemb.CheckpointManager, count: int) -> list[kvemb.Checkpoint]:
    made = []
    for version in range(count):
        fill(store, version, np.arange(version * 1000, version * 1000 + 1000))
        made.append(manager.save(store))
    return made
