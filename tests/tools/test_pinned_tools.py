"""Regression tests: every bug found in the commands that is not of a format or of diff."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashes import copy_of_open
from told import json_of

import kvemb
from kvemb import bulk
from kvemb.errors import Locked
from kvemb.tools.cli import run
from kvemb.tools.export import export
from kvemb.tools.failures import BadInput
from kvemb.tools.migrate import migrate, plan

pytest.importorskip("pyarrow")
BUDGET = "4MiB"


def make(path: Path, keys: Any, rows: Any, *, name: str = "table", key_dtype: str = "int64") -> Path:
    rows = np.asarray(rows)
    with kvemb.open(path, memory_budget=BUDGET) as store:
        table = store.get_variable(name, key_dtype, rows.dtype.name, rows.shape[1])
        bulk.load(table, [bulk.Rows(np.asarray(keys, key_dtype), rows)])
    return path


def rows_of(path: Path, name: str = "table") -> tuple[list[int], Any]:
    with kvemb.open(path, read_only=True, memory_budget=BUDGET) as store:
        keys, values = store.variables[name].export()
        return keys.tolist(), values


def test_what_is_not_finite_is_told_apart_in_json(tmp_path, capsys):
    for name, number in (("a", 1.0), ("b", 2.0)):
        make(tmp_path / name, [1, 2], np.array([[number, 0, 0], [np.nan, np.inf, -np.inf]], np.float32))
    assert run(["peek", str(tmp_path / "a"), "--json"]) == 0
    found = [row["values"] for row in json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["rows"]]
    assert found == [[1, 0, 0], ["NaN", "Infinity", "-Infinity"]]
    assert str([float(number) for number in found[1]]) == "[nan, inf, -inf]"
    (found,) = json_of(capsys, "diff", tmp_path / "a", tmp_path / "b")["variables"]
    assert found["l2"] == {"upto": [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, "Infinity"], "counts": [0] * 7 + [1, 0]}


def test_no_argument_is_ignored(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=1)
        table.upsert(np.arange(10), np.zeros((10, 1), np.float32))
        store.checkpoint(tmp_path / "1")
        table.remove([1, 5, 6])
        table.upsert([2, 7], np.ones((2, 1), np.float32))
        store.checkpoint(tmp_path / "2")
    for arguments in ({"partitions": 4}, {"jobs": 2}):
        with pytest.raises(BadInput, match="leave them out with --since"):
            export(tmp_path / "2", tmp_path / "o.parquet", since=tmp_path / "1", **arguments)
        with pytest.raises(BadInput, match="and with a pipe"):
            export(tmp_path / "2", io.BytesIO(), format="csv", **arguments)
    done = export(tmp_path / "2", tmp_path / "o.parquet", since=tmp_path / "1", where="key in 0..2")
    assert (done.rows, done.removed) == (1, 1)
    assert np.load(tmp_path / "o.removed.npy").tolist() == [1]
    with pytest.raises(BadInput, match="has no optimizer already; leave --optimizer out"):
        plan(tmp_path / "2", tmp_path / "out", optimizer="none")
    with pytest.raises(BadInput, match="has the policy none already"):
        plan(tmp_path / "2", tmp_path / "out", policy="none")


def test_a_store_that_appeared_since_the_plan_is_left_alone(tmp_path):
    make(tmp_path / "store", [1], np.zeros((1, 2), np.float32))
    found = plan(tmp_path / "store", tmp_path / "out", dim=3)
    with kvemb.open(tmp_path / "out", memory_budget=BUDGET) as other:
        other.get_variable("mine").upsert([1], [[1.0]])
        with pytest.raises(FileExistsError, match="exists"):
            migrate(found)
        with pytest.raises((FileExistsError, Locked)):
            kvemb.repair(tmp_path / "store", tmp_path / "out")
    assert rows_of(tmp_path / "out", "mine")[0] == [1]


def test_a_key_may_be_negative(tmp_path, capsys):
    make(tmp_path / "store", [-5], np.ones((1, 1), np.float32))
    assert json_of(capsys, "peek", tmp_path / "store", "--variable", "table", "-5")["rows"][0]["key"] == -5


def test_who_reads_a_store_that_was_not_closed_is_told(tmp_path, caplog, capsys):
    store = kvemb.open(tmp_path / "live", memory_budget=BUDGET, durability="write")
    table = store.get_variable("table", dim=1)
    store.flush()
    table.upsert([1], [[1.0]])
    copy_of_open(tmp_path / "live", tmp_path / "left")
    with kvemb.open(tmp_path / "live", read_only=True, memory_budget=BUDGET):
        assert caplog.messages == [], "its owner is at work"
    store.close()
    for read in (lambda: rows_of(tmp_path / "left"), lambda: run(["info", str(tmp_path / "left")])):
        caplog.clear()
        read()
        assert "was not closed; it is read as of its durable point of" in caplog.messages[0]
        assert caplog.messages[0].endswith(": open it for writing to recover the later writes in its log")
    with kvemb.open(tmp_path / "left", memory_budget=BUDGET) as opened:
        assert opened.variables["table"].size() == 1
        with pytest.raises(KeyError, match="there is no variable 'tabel'; there is table"):
            opened.variables["tabel"]
    capsys.readouterr()


def test_a_transfer_takes_at_least_one_job(tmp_path):
    pytest.importorskip("fsspec")
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=1).upsert([1], [[1.0]])
        with kvemb.CheckpointManager(tmp_path / "series") as manager:
            manager.save(store)
    series = kvemb.CheckpointManager(tmp_path / "series")
    for call in (series.push, series.pull):
        with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
            call("memory://nothing/here", jobs=0)


def test_a_url_that_is_written_to_is_told_as_it_was_given(tmp_path, monkeypatch, capsys):
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        make(tmp_path / name, [1], np.full((1, 1), len(name), np.float32))
    url = f"memory://{tmp_path.name}/"
    for arguments, out in (
        (["report", "one"], f"{url}page.html"),
        (["export", "one"], f"{url}out.csv"),
        (["diff", "one", "two", "--out"], f"{url}diff.parquet"),
    ):
        for place, options in ((out, []), (f"{out}.json", ["--json"])):
            options += ["--format", "csv"] if arguments[0] == "export" else []
            assert run([*arguments, place, *options]) == 0
            assert place in capsys.readouterr().out.replace("\n", ""), arguments
