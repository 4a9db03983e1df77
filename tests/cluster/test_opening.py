"""Opening a cluster: its arguments, where its files are, and that nothing is left."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import kvemb.cluster
from kvemb.cluster import opening
from kvemb.errors import ColdStoreError


def test_its_files_are_in_scratch_until_it_is_closed(tmp_path):
    cluster = kvemb.cluster.open(shards=2, memory_budget="4MiB", scratch=tmp_path / "made" / "here", transport="local")
    assert cluster.shards == 2
    folder = Path(cluster.path)
    assert folder.parent == tmp_path / "made" / "here"
    assert sorted(path.name for path in folder.iterdir()) == ["shard-0000", "shard-0001"]
    cluster.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shards": 0}, ValueError, "shards must be at least 1"),
        ({"shards": 4097}, ValueError, "shards must be at most 4096"),
        ({"shards": 2.0}, TypeError, "shards must be an int"),
        ({"shards": 2, "memory_budget": "1KB"}, ValueError, "memory_budget must be at least"),
        ({"shards": 2, "device_memory": "lots"}, ValueError, "device_memory"),
        ({"shards": 2, "gpus": -1}, ValueError, "gpus must be finite and at least 0"),
        ({"shards": 2, "gpus": 1.5}, ValueError, r"gpus must be a whole number or less than 1, got 1\.5"),
        ({"number": 1.5}, TypeError, "number must be an int"),
        ({"number": 1, "shards": 2}, ValueError, "number=1 selects a checkpoint, so url is required"),
        ({"shards": 2, "gpus": 1}, ValueError, "gpus is for shards on Ray; leave it out with"),
        ({"shards": 2, "options": {}}, ValueError, "options are for the filesystem of url, and url was not given"),
        ({"shards": 2, "answer_seconds": 0.5}, ValueError, "answer_seconds must be a number of seconds, at least 1"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        kvemb.cluster.open(scratch=tmp_path, transport="local", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ColdStoreError, match=r"cannot write to .*file"):
        kvemb.cluster.open(shards=2, scratch=tmp_path / "file", transport="local")


@pytest.mark.slow
def test_kvemb_does_not_import_it():
    done = subprocess.run(
        [sys.executable, "-c", "import kvemb, sys; print('kvemb.cluster' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"


def test_a_single_stores_series_is_no_place_for_a_cluster(tmp_path):
    with (
        kvemb.open(tmp_path / "store", memory_budget="4MiB") as store,
        kvemb.CheckpointManager(tmp_path / "a") as series,
    ):
        series.save(store)
    with pytest.raises(FileExistsError, match="a is a series of a single store's checkpoints; name another directory"):
        kvemb.cluster.open(tmp_path / "a", shards=1, memory_budget="4MiB", transport="local")


@pytest.mark.slow
def test_one_that_is_dropped_open_is_told(tmp_path, caplog):
    gc.collect()  # what earlier tests left is told now
    caplog.clear()
    url = str(tmp_path / "series")
    left = kvemb.cluster.open(url, shards=1, memory_budget="4MiB", scratch=tmp_path, transport="local")
    coordinator = opening._here[url]  # so that the shard can be closed below
    left.get_variable("items", dim=2)
    assert caplog.messages == []
    del left
    gc.collect()
    said = f"the cluster {url} was not closed: what changed after its last checkpoint is lost"
    assert [each.partition(";")[0] for each in caplog.messages] == [said]
    coordinator.close()
