"""The changes that checkpoints record, and replicas to which they are applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from histories import DIM

import kvemb
from kvemb import bulk
from kvemb.durability.checkpoint import Checkpoint


def told(checkpoint: Checkpoint, since: Any, name: str) -> tuple[dict[int, tuple[bytes, ...]], list[int]]:
    """Return all of a variable's changes(): rows and removed keys; checks that each occurs once, in order."""
    rows: dict[int, tuple[bytes, ...]] = {}
    order: list[int] = []
    removed: list[int] = []
    for part in checkpoint.changes(since, variables=[name], batch_rows=64):
        assert part.variable == name
        for at, key in enumerate(part.keys.tolist()):
            slots = [slot[at].tobytes() for slot in part.slots.values()]
            rows[key] = (part.values[at].tobytes(), *slots, part.scores[at].tobytes())
        order += part.keys.tolist()
        removed += part.removed.tolist()
    assert order == sorted(set(order))
    assert removed == sorted(set(removed))
    return rows, removed


def columns_of(store: kvemb.Store) -> dict[str, Any]:
    """Return the bytes of all rows of each variable, and what it was made with."""
    found: dict[str, Any] = {}
    for name, variable in store.variables.items():
        parts = [
            (each.keys, each.values, each.scores, each.steps, *each.slots.values()) for each in bulk.scan(variable)
        ]
        columns = [np.concatenate(each).tobytes() for each in zip(*parts, strict=True)]
        found[name] = columns, {**bulk.described(variable), "name": name}
    return found


def open_store_from(checkpoint: Any, path: Path, open_store: Any) -> kvemb.Store:
    kvemb.restore(checkpoint, path, memory_budget="4MiB").close()
    opened: kvemb.Store = open_store(path, memory_budget="4MiB")
    return opened


def fill(store: kvemb.Store, keys: Any, value: float, name: str = "table") -> kvemb.Variable:
    table = store.get_variable(name, dim=DIM)
    table.upsert(keys, np.full((len(keys), DIM), value, np.float32))
    return table
