"""Checkpoints and stores to damage, and every way to damage one of their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from crashes import copy_of_open

import kvemb

DIM = 4
KEYS = np.random.default_rng(5).permutation(4000).astype(np.int64) * 7919 - 9_000_000
# Offsets at which each file is damaged; KVEMB_OFFSETS gives more.
OFFSETS = int(os.environ.get("KVEMB_OFFSETS", "1"))
BUDGET = "4MiB"


def values_of(keys: Any, version: int) -> Any:
    return np.repeat(np.asarray(keys, np.float32)[:, None] + version, DIM, axis=1)


# Of "table". Its key 1 has no row, and is sighted twice.
ADMISSION = kvemb.Admission(3, 4096)


def fill(store: kvemb.Store) -> None:
    """Make rows in several files, some of which hide others: older versions, removals, a cleared table."""
    table = store.get_variable(
        "table", dim=DIM, hot_rows=256, optimizer=kvemb.optimizers.Adagrad(), admission=ADMISSION
    )
    table.apply_gradients([1, 1], np.ones((2, DIM), np.float32))
    other = store.get_variable("other", "uint64", "float16", DIM, hot_rows=64)
    table.upsert(KEYS, values_of(KEYS, 1))
    other.upsert(KEYS.astype(np.uint64)[:900], np.ones((900, DIM), np.float16))
    store.flush()
    other.clear()
    table.upsert(KEYS[:1500], values_of(KEYS[:1500], 2))
    store.flush()
    table.remove(KEYS[1000:1700])
    other.upsert(KEYS.astype(np.uint64)[:300], np.full((300, DIM), 2, np.float16))


def damages(path: Path) -> Iterator[str]:
    """Damage a file in one way after the other, yielding the name of each. REQUIRES: the file has no other link."""
    data = path.read_bytes()
    chance = np.random.default_rng(len(data))
    for at in chance.integers(0, len(data), OFFSETS) if data else []:
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(chance.integers(8))
        path.write_bytes(bytes(flipped))
        yield f"a bit flipped at {at}"
    for length in {0, len(data) // 2, len(data) - 1} if data else set():
        path.write_bytes(data[:length])
        yield f"cut to {length}"
    path.unlink()
    yield "missing"
    path.write_bytes(data)


def make(place: Path) -> Path:
    """parent and checkpoint: two checkpoints. closed: a closed store. crashed: an unclosed store, with a log."""
    with kvemb.open(place / "closed", memory_budget=BUDGET) as store:
        adagrad = kvemb.optimizers.Adagrad()
        table = store.get_variable("table", dim=DIM, hot_rows=256, optimizer=adagrad, admission=ADMISSION)
        table.upsert(KEYS[:50], values_of(KEYS[:50], 0))
        store.checkpoint(place / "parent")
        fill(store)
        store.checkpoint(place / "checkpoint")
    store = kvemb.open(place / "live", memory_budget=BUDGET, durability="write")
    fill(store)
    store.flush()
    for at in range(0, 200, 20):
        store.variables["table"].upsert(KEYS[at : at + 20], values_of(KEYS[at : at + 20], 3))
    copy_of_open(place / "live", place / "crashed")
    store.close()
    shutil.rmtree(place / "live")
    return place
