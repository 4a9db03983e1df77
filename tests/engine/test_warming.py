"""A warm start: the rows that were hot are hot again, whatever the order in which variables are opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb

Opener = Callable[..., kvemb.Store]
NAMES = {"large": 60_000, "middle": 20_000, "small": 300}


def train(store: kvemb.Store) -> None:
    """More rows than the budget holds; of each table some are popular."""
    chance = np.random.default_rng(1)
    for name, rows in NAMES.items():
        variable = store.get_variable(name, dim=16, restrict_policy=kvemb.FrequencyRestrictPolicy())
        for start in range(0, rows, 10_000):
            keys = np.arange(start, min(rows, start + 10_000))
            variable.upsert(keys, np.ones((len(keys), 16), np.float32))
    for _ in range(30):
        for name, rows in NAMES.items():
            store.variables[name].lookup((rows * chance.random(2000) ** 3).astype(np.int64))


def hot_counts(store: kvemb.Store, names: Any) -> dict[str, int]:
    return {name: store.variables[name].stats.rows_hot for name in names}


@pytest.mark.parametrize("budget", [pytest.param("8MiB", marks=pytest.mark.slow), "5MiB"])
@pytest.mark.parametrize(
    "how", ["restore", pytest.param("open", marks=pytest.mark.slow), pytest.param("read_only", marks=pytest.mark.slow)]
)
def test_the_order_of_opening_does_not_matter(open_store: Opener, tmp_path: Path, how: str, budget: str) -> None:
    with open_store(tmp_path / "store", memory_budget="8MiB") as store:
        train(store)
        before = hot_counts(store, NAMES)
        store.checkpoint(tmp_path / "checkpoint")
    found = []
    for number, names in enumerate([list(NAMES), list(NAMES)[::-1]]):
        if how == "restore":
            again = kvemb.restore(tmp_path / "checkpoint", tmp_path / f"{number}", warm=True, memory_budget=budget)
        else:
            # A copy for each: what one of them has hot at its end, a little less, is what the next would begin with.
            copy = shutil.copytree(tmp_path / "store", tmp_path / f"{number}")
            again = kvemb.open(copy, warm=True, memory_budget=budget, read_only=how == "read_only")
        with again:
            for name in names:
                again.variables[name].lookup([1], touch=False)
            found.append(hot_counts(again, NAMES))
            assert again.budget.free >= 0
    for counts in found:
        part = 1.0 if budget == "8MiB" else sum(counts.values()) / sum(before.values())
        assert part > 0.5
        for name, rows in before.items():
            assert counts[name] == pytest.approx(part * rows, rel=0.1, abs=70), name
            assert counts[name] == pytest.approx(found[0][name], rel=0.01, abs=70), name


@pytest.mark.parametrize("follow", [False, True])
def test_variables_are_warm_after_another_one_was_dropped(open_store: Opener, tmp_path: Path, follow: bool) -> None:
    with open_store(tmp_path / "store") as store:
        for name in ("dropped", "kept"):
            store.get_variable(name, dim=4).upsert(np.arange(100), np.ones((100, 4), np.float32))
    owner = open_store(tmp_path / "store", warm=True)
    shown = open_store(tmp_path / "store", warm=True, follow=True) if follow else owner
    owner.drop_variable("dropped")
    if follow:
        shown.refresh()
    assert hot_counts(shown, ["kept"]) == {"kept": 100}
    if not follow:
        again = shown.get_variable("dropped", dim=4)
        assert again.stats.rows_hot == 0
        assert again.lookup([1]).tolist() == [[0] * 4]
