"""Paths and URLs that callers give, of every kind, and the numbers of a series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kvemb
import kvemb.cluster
from kvemb.durability import paths
from kvemb.durability.scratch import scratch
from kvemb.errors import StoreNotFound
from kvemb.offline.transfer import Remote


@pytest.fixture
def series(open_store, tmp_path, monkeypatch):
    """A series of which two of three checkpoints are left; the last has three rows."""
    monkeypatch.chdir(tmp_path)
    store = open_store(tmp_path / "store")
    table = store.get_variable("table", dim=1)
    with kvemb.CheckpointManager("series", keep=2) as manager:
        for number in range(3):
            table.upsert([number], np.ones((1, 1), np.float32))
            manager.save(store)
    return Path("series")


def test_a_url_is_no_directory(series, tmp_path):
    checkpoint = series / "00000003"
    # These also take what is at a URL, which is a str.
    remote = (kvemb.verify, lambda path: kvemb.repair(path, "out"), lambda path: kvemb.restore(path, "out"))
    with kvemb.open(checkpoint, read_only=True, memory_budget="4MiB") as reader:
        calls = [
            *(kvemb.open, kvemb.Checkpoint, kvemb.Checkpoint.at, kvemb.CheckpointManager),
            *(*remote, lambda path: kvemb.repair(checkpoint, path)),
            lambda path: kvemb.restore(checkpoint, path),
            reader.checkpoint,
        ]
        for call in calls:
            urls = ["s3://bucket/store", Path("s3://bucket/store"), "file:///tmp/store", "memory://x"]
            said = r"must be a local directory, got the URL '.*'; kvemb pull|give it as a str with two, not as a Path"
            for url in urls[1:2] if call in remote else urls:
                with pytest.raises(ValueError, match=said):
                    call(url)
            with pytest.raises(TypeError, match="must be a str or a path, got"):
                call(7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["series", "store"]
    assert paths.local("./s3:/x") == tmp_path / "s3:/x"


def test_what_was_opened_by_a_relative_path_stays_there_when_the_working_directory_changes(
    open_store, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    store, series = open_store("store"), kvemb.CheckpointManager("series")
    table = store.get_variable("table", dim=1)
    table.upsert([1], np.ones((1, 1), np.float32))
    checkpoint = store.checkpoint("checkpoint")
    named, place, remote = kvemb.Checkpoint("checkpoint"), kvemb.bulk.Place("checkpoint"), Remote("pushed")
    reader = open_store("store", follow=True)
    cluster = kvemb.cluster.open("cluster", shards=1, scratch="scratch", memory_budget="4MiB", transport="local")
    with series, cluster, scratch("working-", ".") as working:
        monkeypatch.chdir(elsewhere)
        table.upsert([2], np.ones((1, 1), np.float32))
        saved = series.save(store, files={"notes": b"here"})
        remote.push(saved, 1)
        assert cluster.get_variable("table", dim=1).upsert([1], [[1.0]]) is None
        cluster.checkpoint()
        assert [each.path for each in series.list()] == [saved.path] == [tmp_path / "series" / "00000001"]
        assert saved.files["notes"].read_bytes() == b"here"
        assert [change.keys.tolist() for change in saved.changes(named)] == [[2]]
        assert place.described().id == named.id == checkpoint.id
        assert reader.refresh()
        assert reader.variables["table"].size() == 2
        assert working.is_dir()
        assert remote.numbers() == [1]
        assert list(elsewhere.iterdir()) == []


def test_a_place_elsewhere_is_text():
    here = Path.cwd() / "a/b"
    for given, place in (
        *((here, str(here)), ("a/b/", str(here)), ("/", "/"), ("s3://b/x//", "s3://b/x"), ("memory://", "memory://")),
    ):
        assert paths.url_text(given) == place
    for strange in (7, None, b"x"):
        with pytest.raises(TypeError, match="url must be a str or a path"):
            paths.url_text(strange)
    with pytest.raises(ValueError, match="url must not be empty or contain a null character"):
        paths.url_text("")
    with pytest.raises(ValueError, match="'s3:/b/x' has one slash after its colon; give it as a str"):
        paths.url_text(Path("s3://b/x"))


def test_a_number_that_is_dropped_is_no_place_for_a_store(series, tmp_path):
    told = "the series .*series has no checkpoint 0000000{}; it has 00000002, 00000003"
    for number in (1, 7):
        place = series / f"0000000{number}"
        for call in (
            kvemb.open,
            lambda path: kvemb.open(path, read_only=True),
            lambda path: kvemb.open(path, follow=True),
            kvemb.verify,
            kvemb.Checkpoint,
            kvemb.Checkpoint.at,
            lambda path: kvemb.restore(path, "out"),
            lambda path: kvemb.restore("series/00000002", path),
            lambda path: kvemb.repair("series/00000002", path),
        ):
            with pytest.raises(FileNotFoundError, match=told.format(number)):
                call(place)
    (series / "00000001").mkdir()
    with pytest.raises(StoreNotFound, match=told.format(1)):
        kvemb.open(series / "00000001")
    (series / "00000001").rmdir()
    assert sorted(path.name for path in series.iterdir()) == ["00000002", "00000003", "LOCK"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["series", "store"]
    # A name of eight digits is one like another where no series is.
    kvemb.open("00000001", memory_budget="4MiB").close()
    kvemb.open("00000001", memory_budget="4MiB").close()


def test_what_has_a_clusters_checkpoints_is_neither_a_store_nor_a_single_stores_series(tmp_path):
    for folder in ("checkpoints", "shards"):
        (tmp_path / "series" / folder).mkdir(parents=True)
    for path in (tmp_path / "series", tmp_path / "series" / "00000001"):
        for how in ({}, {"read_only": True}):
            with pytest.raises(
                StoreNotFound, match=r"series has a cluster's checkpoints: kvemb\.cluster\.open opens them"
            ):
                kvemb.open(path, **how)
    manager = kvemb.CheckpointManager(tmp_path / "series")
    with pytest.raises(FileExistsError, match="series has a cluster's checkpoints, which only the cluster writes"):
        manager.push("memory://elsewhere")
    with pytest.raises(FileExistsError, match="series has a cluster's checkpoints, which only the cluster writes"):
        manager.resume(tmp_path / "store")
