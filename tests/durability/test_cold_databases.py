"""A manifest and the database beside it have the same variables, or whoever opens them says that they differ."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest

import kvemb
from kvemb.durability import layout, manifest
from kvemb.errors import Corruption
from kvemb.tools.cli import run

BUDGET = "4MiB"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """earlier and checkpoint: two checkpoints of a closed store of two variables."""
    place = tmp_path_factory.mktemp("made")
    with kvemb.open(place / "store", memory_budget=BUDGET) as store:
        for name in ("items", "users"):
            store.get_variable(name, dim=2).upsert(np.arange(50), np.ones((50, 2), np.float32))
        store.checkpoint(place / "earlier")
        store.variables["users"].remove([1])
        store.checkpoint(place / "checkpoint")
    return place


def removed(variables: dict[str, Any]) -> None:
    del variables["users"]


def renamed(variables: dict[str, Any]) -> None:
    variables["others"] = variables.pop("users")


def added(variables: dict[str, Any]) -> None:
    variables["others"] = dict(variables["users"])


BENT = {
    removed: "the variable 'users' is in rows/ but not in manifest.json",
    renamed: "the variable 'others' is in manifest.json but not in rows/, and 1 more variables differ",
    added: "the variable 'others' is in manifest.json but not in rows/",
}


def bend(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads((directory / manifest.NAME).read_text())
    change(data["variables"])
    (directory / manifest.NAME).write_text(hostile.signed(data))


@pytest.mark.parametrize("change", BENT, ids=lambda change: change.__name__)
def test_a_checkpoint_of_other_variables_than_its_manifest_says(made, tmp_path, capsys, change):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made / "checkpoint", checkpoint)
    bend(checkpoint, change)
    line = f"{checkpoint / 'rows'} is damaged: {BENT[change]}"
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: kvemb.open(checkpoint, read_only=True, memory_budget=BUDGET).close(),
        "restore": lambda: kvemb.restore(checkpoint, tmp_path / "restored", memory_budget=BUDGET).close(),
        "repair": lambda: kvemb.repair(checkpoint, tmp_path / "repaired"),
        "changes": lambda: list(kvemb.Checkpoint(checkpoint).changes(made / "earlier")),
    }
    for name, way in ways.items():
        with pytest.raises(Corruption) as told:
            way()
        assert str(told.value).startswith(line), name
    assert [finding.partition(";")[0] for finding in kvemb.verify(checkpoint, deep=True).findings] == [line]
    assert run(["restore", str(checkpoint), str(tmp_path / "typed")]) == 1
    assert line in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize("change", BENT, ids=lambda change: change.__name__)
def test_a_store_of_other_variables_than_its_manifest_says(made, tmp_path, change):
    store = tmp_path / "store"
    shutil.copytree(made / "store", store)
    bend(layout.current_point(store), change)
    for read_only in (False, True):
        with pytest.raises(Corruption) as told:
            kvemb.open(store, read_only=read_only, memory_budget=BUDGET)
        assert BENT[change] in str(told.value)
        assert str(told.value).startswith(str(store))
