"""A cluster's checkpoints on the command line: what reads a checkpoint reads them, and cluster writes them again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kvemb
import kvemb.cluster
from kvemb.tools.cli import run

BUDGET = "4MiB"


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of a cluster of two shards with 100 users, and of an item; the first one has a row more."""
    monkeypatch.chdir(tmp_path)
    with kvemb.cluster.open("series", shards=2, memory_budget=BUDGET, transport="local") as cluster:
        users = cluster.get_variable("users", dim=2, restrict_policy=kvemb.FrequencyRestrictPolicy())
        users.upsert(np.arange(101), np.arange(202, dtype=np.float32).reshape(101, 2))
        cluster.get_variable("items", dim=3).upsert([1], np.ones((1, 3), np.float32))
        cluster.checkpoint()
        users.remove([100])
    return tmp_path / "series"


def summary_of(capsys, *arguments, code=0):
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_it_is_described(series, capsys):
    found = summary_of(capsys, "info", "series")
    assert found["kind"] == "checkpoint 2 of a cluster of 2 shards"
    assert [each["rows"] for each in found["variables"]] == [1, 100]
    assert summary_of(capsys, "ls", "series") == {"items": 1, "users": 100}
    status = summary_of(capsys, "cluster", "status", "series")
    assert (status["number"], len(status["shards"]), status["rows"]) == (2, 2, {"items": 1, "users": 100})
    assert run(["cluster", "status", "series"]) == 0
    assert "100 rows" in capsys.readouterr().out


def test_its_rows_are_read(series, capsys):
    found = summary_of(capsys, "peek", "series", "users", "17", "100", code=1)
    assert found["rows"][0]["values"] == [34, 35]
    assert found["missing"] == [100]
    assert run(["export", "series", "users.csv", "--variable", "users"]) == 0
    assert len(Path("users.csv").read_text().splitlines()) == 101
    capsys.readouterr()


def test_two_are_compared(series, capsys):
    assert run(["restore", "series", "now"]) == 0
    kvemb.cluster.restore("series", "before", number=1).close()
    capsys.readouterr()
    found = summary_of(capsys, "diff", "before", "series")
    users = next(each for each in next(iter(found.values())) if each["variable"] == "users")
    assert (users["added"], users["removed"], users["changed"]) == (0, 1, 0)


def test_damage_is_found(series, capsys):
    assert summary_of(capsys, "verify", "series", "--deep")["sound"]
    largest = max(series.glob("shards/*/files/*/*"), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    largest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert summary_of(capsys, "verify", "series", code=0)["sound"]
    assert str(largest) in summary_of(capsys, "verify", "series", "--deep", code=1)["findings"][0]
    largest.write_bytes(data)
    (manifest,) = series.glob("checkpoints/00000002.json")
    manifest.write_text(manifest.read_text().replace("2", "3", 1))
    (shard, *_) = sorted(series.glob("shards/*/checkpoints/00000001.json"))
    shard.unlink()
    findings = summary_of(capsys, "verify", "series", code=1)["findings"]
    assert any("00000002.json" in line for line in findings)
    assert any(line.endswith("is missing") and "00000001" in line for line in findings)


def test_it_is_written_again_for_other_shards(series, capsys):
    done = summary_of(capsys, "cluster", "reshard", "series", "other", "--shards", "3")
    assert (done["number"], done["shards"], done["rows"]) == (1, 3, 101)
    assert summary_of(capsys, "cluster", "reshard", "series", "series", "--shards", "1", "--quiet")["number"] == 3
    for place, shards in (("other", 3), ("series", 1)):
        assert summary_of(capsys, "verify", place, "--deep")["sound"]
        with kvemb.cluster.open(place, memory_budget=BUDGET, transport="local") as cluster:
            assert cluster.shards == shards
            keys, values = cluster.variables["users"].export()
            assert keys.tolist() == list(range(100))
            assert values.reshape(-1).tolist() == list(range(200))
    assert not [path for path in series.parent.iterdir() if path.name.startswith((".", "kvemb"))]


def test_what_is_not_there_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["cluster", "status", "none"]) == 1
    assert "there is no checkpoint of a cluster at" in capsys.readouterr().err
    assert run(["cluster", "reshard", "none", "out", "--shards", "2"]) == 1
