"""A cluster's checkpoints on the command line: what reads a checkpoint reads them, and cluster writes them again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import quick
from told import json_of

import kvemb
import kvemb.cluster
from kvemb.tools.cli import run

fsspec = pytest.importorskip("fsspec")
BUDGET = "4MiB"


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of a cluster of two shards with 100 users, and of an item; the first one has a row more."""
    monkeypatch.chdir(tmp_path)
    save("series")
    return tmp_path / "series"


@pytest.fixture(params=quick(["directory", "URL"]))
def place(request, tmp_path, monkeypatch) -> Iterator[str]:
    """The same in a directory, or at a URL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    url = "series" if request.param == "directory" else f"memory://{tmp_path.name}"
    save(url)
    yield url
    assert list((tmp_path / "tmp").iterdir()) == [], "what was pulled is deleted"
    if request.param == "URL":
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


def save(url: str) -> None:
    how: Any = {"memory_budget": BUDGET, "transport": "local"}
    with kvemb.cluster.open(url, shards=2, **how) as cluster:
        users = cluster.get_variable("users", dim=2, restrict_policy=kvemb.FrequencyRestrictPolicy())
        users.upsert(np.arange(101), np.arange(202, dtype=np.float32).reshape(101, 2))
        cluster.get_variable("items", dim=3).upsert([1], np.ones((1, 3), np.float32))
        cluster.checkpoint()
        users.remove([100])
        users.upsert([5], [[1, 1]])
        cluster.checkpoint(files={"dense": b"four"}, extra={"step": 9})
        cluster.close(flush=False)


@pytest.mark.parametrize("place", ["directory", "URL"], indirect=True)
def test_it_is_described(place, capsys):
    found = json_of(capsys, "info", place)
    assert found["kind"] == "checkpoint 2 of a cluster of 2 shards"
    assert [each["rows"] for each in found["variables"]] == [1, 100]
    assert (found["attached"], found["extra"]) == ({"dense": 4}, {"step": 9})
    assert found["parent"] == json_of(capsys, "info", f"{place}/00000001")["id"]
    assert json_of(capsys, "ls", place) == {"items": 1, "users": 100}
    assert json_of(capsys, "ls", f"{place}/00000001") == {"items": 1, "users": 101}
    files = json_of(capsys, "ls", place, "--files")
    assert len({name.split("/")[1] for name in files}) == 2, "of both shards"
    status = json_of(capsys, "cluster", "status", place)
    assert (status["number"], len(status["shards"]), status["rows"]) == (2, 2, {"items": 1, "users": 100})
    assert run(["cluster", "status", place]) == 0
    assert "100 rows" in capsys.readouterr().out
    assert run(["ls", place]) == 0
    assert f"{place}/00000002, the newest checkpoint of {place}:" in capsys.readouterr().err


def test_its_rows_are_read(place, capsys):
    found = json_of(capsys, "peek", place, "17", "100", "--variable", "users", code=1)
    assert found["rows"][0]["values"] == [34, 35]
    assert found["missing"] == [100]
    assert json_of(capsys, "peek", f"{place}/00000001", "100", "--variable", "users")["rows"][0]["values"] == [
        200,
        201,
    ]
    assert json_of(capsys, "stats", place, "--variable", "users")["rows"] == 100
    assert run(["export", place, "users.csv", "--variable", "users"]) == 0
    assert len(Path("users.csv").read_text().splitlines()) == 101
    since = ["export", place, "new.csv", "--variable", "users", "--since", f"{place}/00000001"]
    assert run(since) == 0
    assert [line.split(",")[0] for line in Path("new.csv").read_text().splitlines()] == ['"key"', "5"]
    assert np.load("new.removed.npy").tolist() == [100]
    capsys.readouterr()
    assert run(["peek", place, "--variable", "none"]) == 1
    assert f"{place} has no variable 'none'; it has items, users" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("place", ["URL"], indirect=True)
def test_processes_share_what_was_pulled(place):
    parts = ["export", place, "parts", "--variable", "users", "--format", "csv", "--partitions", "2", "--jobs", "2"]
    assert run(parts) == 0
    assert sum(len(path.read_text().splitlines()) - 1 for path in Path("parts").iterdir()) == 100


def test_two_are_compared(place, capsys):
    assert run(["restore", place, "now"]) == 0
    assert run(["restore", f"{place}/00000001", "before", "--variable", "users"]) == 0
    capsys.readouterr()
    pairs = [("before", place), (f"{place}/00000001", place), (f"{place}/00000001", "now")]
    for one, other in pairs:
        found = json_of(capsys, "diff", one, other, "--variable", "users")
        (users,) = next(iter(found.values()))
        assert (users["added"], users["removed"], users["changed"], users["moved"]) == (0, 1, 1, 1)
        assert users["recorded"] == (one != "before"), "a store that was opened has a point of its own"


@pytest.mark.slow
def test_those_of_other_shards_are_compared(series, capsys):
    assert run(["cluster", "reshard", "series", "series", "--shards", "3"]) == 0
    capsys.readouterr()
    found = json_of(capsys, "diff", "series/00000001", "series", "--variable", "users")
    (users,) = next(iter(found.values()))
    assert (users["added"], users["removed"], users["changed"], users["moved"]) == (0, 1, 1, 1)


def test_damage_is_found(series, capsys):
    assert json_of(capsys, "verify", "series", "--deep")["sound"]
    largest = max(series.glob("shards/*/files/*/*"), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    largest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert json_of(capsys, "verify", "series", code=0)["sound"]
    assert str(largest) in json_of(capsys, "verify", "series", "--deep", code=1)["findings"][0]
    largest.write_bytes(data)
    (manifest,) = series.glob("checkpoints/00000002.json")
    manifest.write_text(manifest.read_text().replace("2", "3", 1))
    (shard, *_) = sorted(series.glob("shards/*/checkpoints/00000001.json"))
    shard.unlink()
    findings = json_of(capsys, "verify", "series", code=1)["findings"]
    assert any("00000002.json" in line for line in findings)
    assert any(line.endswith("is missing") and "00000001" in line for line in findings)


@pytest.mark.slow
def test_it_is_written_again_for_other_shards(series, capsys):
    done = json_of(capsys, "cluster", "reshard", "series", "other", "--shards", "3")
    assert (done["number"], done["shards"], done["rows"]) == (1, 3, 101)
    assert json_of(capsys, "cluster", "reshard", "series", "series", "--shards", "1", "--quiet")["number"] == 3
    for place, shards in (("other", 3), ("series", 1)):
        assert json_of(capsys, "verify", place, "--deep")["sound"]
        with kvemb.cluster.open(place, memory_budget=BUDGET, transport="local") as cluster:
            assert cluster.shards == shards
            keys, values = cluster.variables["users"].export()
            assert keys.tolist() == list(range(100))
            assert values.reshape(-1).tolist() == [*range(10), 1, 1, *range(12, 200)]
    assert not [path for path in series.parent.iterdir() if path.name.startswith((".", "kvemb"))]
