"""Pushed checkpoints: their content, bit for bit, and chains of deltas at a URL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb import bulk
from kvemb.durability import layout
from kvemb.durability.hotset import read_hot
from kvemb.handle import inside
from kvemb.offline import chain

fsspec = pytest.importorskip("fsspec")
DIM = 3
ROWS = 3000


def fill(store: kvemb.Store, keys: Any, version: float, name: str = "table", dim: int = DIM) -> kvemb.Variable:
    table = store.get_variable(name, dim=dim, optimizer=kvemb.optimizers.Adagrad(0.1), hot_rows=64)
    table.upsert(keys, np.full((len(keys), dim), version, np.float32))
    return table


def contents(checkpoint: kvemb.Checkpoint) -> dict[str, Any]:
    """Return a checkpoint's whole content, bit for bit, independent of its files."""
    described = inside(checkpoint)
    rows: dict[str, Any] = {}
    with kvemb.open(checkpoint, read_only=True, memory_budget="4MiB") as store:
        for name in described.variables:
            table = store.variables[name]
            found = [
                (each.keys, each.values, each.scores, each.steps, *(each.slots or {}).values())
                for each in bulk.scan(table)
            ]
            rows[name] = [[column.tobytes() for column in columns] for columns in found]
            assert sum(len(columns[0]) for columns in found) == table.size()
    hot = {
        name: [keys.tolist() for keys in read_hot(checkpoint.path / layout.HOT, files)]
        for name, files in described.hot.items()
    }
    keys = {name: each for name, each in described.files.items() if not chain.is_row_file(name)}
    return {"rows": rows, "hot": hot, "described": replace(described, files=keys)}


def pulled(url: str, root: Path, number: int) -> kvemb.Checkpoint:
    """Pull into a new series, or one that has checkpoints already, and verify deeply."""
    with kvemb.CheckpointManager(root) as copy:
        found = copy.pull(url, number=number)
    assert kvemb.verify(found, deep=True), kvemb.verify(found, deep=True).findings
    return found


def chain_of(
    manager: kvemb.CheckpointManager, store: kvemb.Store, url: str, count: int
) -> list[chain.PushedCheckpoint]:
    """Push a base and deltas; returns the description of each number at the URL."""
    fill(store, np.arange(ROWS), 0)
    for version in range(1, count + 1):
        manager.save(store)
        manager.push(url)
        fill(store, np.arange(version * 10), version)
    files, root = fsspec.core.url_to_fs(url)
    texts = [files.cat_file(f"{root}/checkpoints/{number:08d}.json").decode() for number in range(1, count + 1)]
    return [chain.parse(text, "there", max_characters=1 << 20) for text in texts]
