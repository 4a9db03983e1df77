"""restore: makes a store equal to the checkpoint, and independent of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from told import json_of

import kvemb
from kvemb.tools.cli import run

BUDGET = "4MiB"


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A series of one checkpoint, of the variables users and items."""
    monkeypatch.chdir(tmp_path)
    with kvemb.open("trained", memory_budget=BUDGET) as store, kvemb.CheckpointManager("series") as manager:
        users = store.get_variable("users", dim=2, optimizer=kvemb.optimizers.Adagrad())
        users.upsert(np.arange(1000), np.ones((1000, 2), np.float32))
        store.get_variable("items", dim=3).upsert([1], np.ones((1, 3), np.float32))
        manager.save(store)
    return tmp_path / "series"


def test_a_store_is_made_and_the_checkpoint_stays(series, capsys):
    assert run(["restore", "series/00000001", "store"]) == 0
    told = capsys.readouterr().out
    for part in ("store", "1,000 rows", "items", "1 row"):
        assert part in told
    with kvemb.open("store", memory_budget=BUDGET) as store:
        store.variables["users"].apply_gradients([5], np.ones((1, 2), np.float32))
        store.check()
    assert kvemb.verify("series/00000001", deep=True)


def test_some_of_its_variables(series, capsys):
    summary = json_of(capsys, "restore", "series/00000001", "store", "--variable", "items")
    assert (summary["out"], summary["rows"]) == ("store", {"items": 1})
    assert summary["nbytes"] == kvemb.Checkpoint.at("store").nbytes
    assert list(kvemb.Checkpoint.at("store").variables) == ["items"]
    every = ["--variable", "items", "--variable", "users"]
    assert run(["restore", "series/00000001", "both", "--quiet", *every]) == 0
    assert sorted(kvemb.Checkpoint.at("both").variables) == ["items", "users"]
    capsys.readouterr()


def test_of_a_series_the_newest_is_taken_and_told(series, capsys):
    assert run(["restore", "series", "store"]) == 0
    assert "series/00000001" in capsys.readouterr().out
    assert json_of(capsys, "restore", "series", "again")["checkpoint"] == "series/00000001"
    for options, listed in (([], "1,000  users"), (["--files"], "rows/CURRENT")):
        assert run(["ls", "series", *options]) == 0
        told = capsys.readouterr()
        assert listed in told.out
        assert told.err == f"{series / '00000001'}, the newest checkpoint of series:\n"
    assert json_of(capsys, "ls", "series") == {"items": 1, "users": 1000}
