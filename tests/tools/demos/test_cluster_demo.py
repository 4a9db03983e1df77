"""`kvemb demo --shards` at a tiny size: after a loss it ends as one store does, and a row that differs is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvemb
import kvemb.cluster
from kvemb.errors import ShardLost
from kvemb.handle import inside
from kvemb.tools.cli import run as command
from kvemb.tools.demos import run_cluster
from kvemb.tools.demos.run_clicks import ClickRun
from kvemb.tools.screen import Screen

SETTINGS = ClickRun(3000, 4, 200, "8MiB", 0)


def lost(cluster):
    inside(cluster).session.calls.lose(ShardLost("shard 1 is lost"))


@pytest.mark.slow
def test_it_goes_back_to_its_checkpoint_and_ends_as_one_store(tmp_path, capsys):
    run_cluster.run(SETTINGS, 3, tmp_path, Screen(True, True), transport="local", lose=lost)
    summary = json.loads(capsys.readouterr().out)
    assert (summary["steps"], summary["checkpoint_after"], summary["killed_after"]) == (15, 3, 7)
    assert summary["rows"] > 100
    assert summary["rows_differing"] == 0


def test_a_value_or_a_key_that_differs_is_counted(tmp_path):
    with (
        kvemb.open(tmp_path / "store", memory_budget="4MiB") as store,
        kvemb.cluster.open(shards=2, memory_budget="4MiB", transport="local", scratch=tmp_path / "scratch") as cluster,
    ):
        for place in (store, cluster):
            place.get_variable("table", dim=2).upsert(np.arange(10), np.ones((10, 2), np.float32))
        assert run_cluster._compare(store, cluster) == (10, 0)
        cluster.variables["table"].upsert([3, 10], np.full((2, 2), 2, np.float32))
        cluster.variables["table"].remove([5])
        assert run_cluster._compare(store, cluster) == (10, 3)


def test_what_does_not_go_together_is_refused(capsys):
    assert command(["demo", "--shards", "2", "--dlrm"]) == 2
    assert "--shards cannot be used with --dlrm" in capsys.readouterr().err
