"""Resharding: any number of shards to any other gives every row of every variable, and a failure leaves nothing."""

from __future__ import annotations

import numpy as np
import pytest
from deltas import columns_of
from quick import quick
from twins import Fading

import kvemb
import kvemb.cluster
from kvemb.cluster.durability import gathering, resharding
from kvemb.cluster.durability.cluster_series import ClusterSeries
from kvemb.cluster.durability.restoring import ClusterRemote
from kvemb.errors import ColdStoreError, Corruption
from kvemb.limits import Limits
from kvemb.offline.pushing import Pusher

HOW = {"memory_budget": "4MiB"}


def make(open_cluster, url, shards, seed=0):
    chance, adam = np.random.default_rng(seed), kvemb.optimizers.Adam(0.5)
    with open_cluster(shards, url=url) as cluster:
        for name, dtype, policy in (("users", "int64", kvemb.FrequencyRestrictPolicy()), ("items", "int32", Fading())):
            table = cluster.get_variable(name, dtype, dim=3, optimizer=adam, restrict_policy=policy)
            keys = chance.integers(-500, 500, 700).astype(dtype)
            table.apply_gradients(keys, chance.standard_normal((700, 3)).astype(np.float32))
            table.lookup(keys[:200])
        cluster.get_variable("nothing", dim=1)
        table.remove(keys[:50])


def rows_of(url, place):
    """All that is stored, as one store has it."""
    with kvemb.restore(url, place, **HOW) as store:
        return columns_of(store), sum(variable.size() for variable in store.variables.values())


@pytest.mark.parametrize("counts", quick([(2, 3), (2, 2), (4, 7, 3, 1, 4), (1, 9, 2)]), ids=str)
def test_every_row_arrives(open_cluster, tmp_path, counts):
    limits = Limits(sort_bytes=40_000, scan_rows=100)
    out, scratch, told = tmp_path / "first", tmp_path / "reshard", []
    make(open_cluster, out, counts[0])
    expected = rows_of(out, tmp_path / "before")
    for at, after in enumerate(counts[1:]):
        source, out = out, tmp_path / f"out-{at}"
        kvemb.cluster.reshard(
            source, out, shards=after, scratch=scratch, limits=limits, progress=lambda *count: told.append(count)
        )
        assert list(scratch.iterdir()) == []
        assert told[-1][0] == told[-1][1] == expected[1]
        assert kvemb.cluster.verify(out, deep=True)
        manifest = kvemb.cluster.latest(out)[1]
        assert len(manifest.shards) == after
        assert rows_of(out, tmp_path / f"after-{at}") == expected
    with open_cluster(counts[-1], url=out) as cluster:  # the calls that made the rows are known there
        cluster.variables["users"].upsert([1], np.ones((1, 3), np.float32))


@pytest.mark.slow
def test_each_old_shard_is_pulled_once(open_cluster, tmp_path, monkeypatch):
    make(open_cluster, tmp_path / "series", 4)
    pulls = []

    def pulled(series, wanted, shards, folder):
        pulls.extend(shard.first for shard in shards)
        return actual(series, wanted, shards, folder)

    actual = ClusterRemote.pulled
    monkeypatch.setattr(ClusterRemote, "pulled", pulled)
    kvemb.cluster.reshard(tmp_path / "series", tmp_path / "out", shards=7, scratch=tmp_path / "reshard")
    assert pulls == [0, 1024, 2048, 3072]


@pytest.mark.parametrize("fails", quick(["write", "pull", "spool", "push"], 2))
def test_a_failure_leaves_no_checkpoint_and_no_files_here(open_cluster, tmp_path, monkeypatch, fails):
    make(open_cluster, tmp_path / "series", 3)

    def fail(*arguments, **named):
        raise OSError(28, "No space left on device")

    if fails == "pull":
        for file in (tmp_path / "series" / "shards").glob("*/files/*/*"):
            file.write_bytes(b"")
    else:
        places = {
            "spool": (resharding.Sorter, "add"),
            "write": (gathering, "write_rows"),
            "push": (Pusher, "push"),
        }
        monkeypatch.setattr(*places[fails], fail)
    with pytest.raises((OSError, Corruption, ColdStoreError)):
        kvemb.cluster.reshard(tmp_path / "series", tmp_path / "out", shards=2, scratch=tmp_path / "reshard")
    assert ClusterSeries(tmp_path / "out").numbers() == []
    assert list((tmp_path / "reshard").iterdir()) == []
    monkeypatch.undo()  # the directory is not locked any more
    kvemb.cluster.open(tmp_path / "out", shards=1, transport="local", scratch=tmp_path / "scratch").close()
