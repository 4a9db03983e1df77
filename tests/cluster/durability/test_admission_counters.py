"""Sightings of a cluster: counted by each shard, kept by checkpoints, and joined for another number of shards."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from quick import quick

import kvemb
import kvemb.cluster
from kvemb.cluster.durability.admission_counters import join_counters
from kvemb.durability.admission_counters.counter_file import read_counters, write_counters
from kvemb.handle import inside
from kvemb.operations.admission_counters import ROWS, Counters
from kvemb.tools import inspect

THIRD = kvemb.Admission(3, 1 << 14)
KEYS = np.arange(60)


def table_of(place):
    return place.get_variable("users", dim=1, optimizer=kvemb.optimizers.SGD(1.0), admission=THIRD)


def sight(place, keys):
    """Train these keys, and return the keys that have a row."""
    table_of(place).apply_gradients(keys, -np.ones((len(keys), 1), np.float32))
    return sorted(table_of(place).export()[0].tolist())


def make(open_cluster, url):
    """A series with two checkpoints: keys from 20 on were sighted twice, and 55 to 59 once more."""
    with open_cluster(3, url=url) as cluster:
        assert sight(cluster, KEYS) == []
        cluster.checkpoint()
        assert sight(cluster, np.append(KEYS[20:], KEYS[55:])) == [*range(55, 60)]
        cluster.checkpoint()


def counts_on(place):
    """Sight each key once more: those with two sightings get a row, and no other."""
    return sight(place, KEYS[5:40]) == [*range(20, 40), *range(55, 60)]


@pytest.mark.parametrize("shards", quick([2, 1, 3, 5]))
def test_a_cluster_that_is_opened_again_counts_on_with_any_number_of_shards(open_cluster, tmp_path, shards):
    make(open_cluster, tmp_path / "series")
    assert counts_on(open_cluster(shards, url=tmp_path / "series"))


def test_recovery_goes_back_to_the_sightings_of_the_checkpoint(open_cluster, tmp_path):
    cluster = open_cluster(3, url=tmp_path / "series")
    sight(cluster, KEYS)
    cluster.checkpoint()
    sight(cluster, np.append(KEYS, KEYS))
    cluster.recover()
    assert sight(cluster, KEYS) == []
    assert sight(cluster, KEYS) == KEYS.tolist()


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("shards", quick([2, 3]))
def test_keys_that_were_removed_are_as_new_on_every_shard(open_cluster, tmp_path, shards, clear):
    with open_cluster(3, url=tmp_path / "series") as cluster:
        sight(cluster, np.tile(KEYS, 3))
        table_of(cluster).clear() if clear else table_of(cluster).remove(KEYS[:30])
        rest = [] if clear else KEYS[30:].tolist()
        assert sight(cluster, np.tile(KEYS[:30], 2)) == rest
        table_of(cluster).remove(KEYS[:10])
        cluster.checkpoint()
    with open_cluster(shards, url=tmp_path / "series") as cluster:
        assert sight(cluster, np.tile(KEYS[:10], 2)) == rest
        assert sight(cluster, KEYS[:30]) == [*range(30), *rest]


def test_a_checkpoint_is_described_with_what_all_shards_counted(open_cluster, tmp_path):
    make(open_cluster, tmp_path / "series")
    (found,) = inspect.info(tmp_path / "series").variables
    assert (found.sightings["counted"], found.sightings["counters"]) == (60 + 45, 3 << 14)
    assert found.sightings["bytes"] > 0


@pytest.mark.parametrize("shards", quick([2, 1, 3, 4]))
def test_resharding_keeps_sightings(open_cluster, tmp_path, shards):
    make(open_cluster, tmp_path / "series")
    kvemb.cluster.reshard(tmp_path / "series", tmp_path / "out", shards=shards)
    assert kvemb.cluster.verify(tmp_path / "out", deep=True)
    assert counts_on(open_cluster(shards, url=tmp_path / "out"))


@pytest.mark.parametrize("had", [False, True])
def test_a_pulled_checkpoint_counts_on_as_one_store(open_cluster, tmp_path, had):
    """Also one that was made of the deltas of the shards."""
    make(open_cluster, tmp_path / "series")
    with kvemb.CheckpointManager(tmp_path / "here") as manager:
        for number in (1, 2) if had else (2,):
            pulled = manager.pull(tmp_path / "series", number=number)
        assert [counted.counters for counted in inside(pulled).sightings.values()] == [1 << 14]
        assert kvemb.verify(pulled, deep=True)
        store, _ = manager.resume(tmp_path / "store", memory_budget="8MiB")
        with store:
            assert counts_on(store)


def test_shards_with_other_numbers_of_counters_are_not_joined(tmp_path, caplog):
    stored = []
    for shard, columns in enumerate((256, 256, 512)):
        (tmp_path / f"{shard}").mkdir()
        entries = {}
        for name in ("same", "other")[: 1 if shard == 2 else 2]:
            size = columns if name == "same" else 256
            values = np.full((ROWS, size), shard + 1, np.uint8)
            counters = Counters(values, 10 + shard)
            entries[name] = (tmp_path / f"{shard}", write_counters(tmp_path / f"{shard}" / f"{name}.counts", counters))
        stored.append(entries)
    with caplog.at_level(logging.WARNING, "kvemb"):
        found = join_counters(stored, tmp_path / "joined", 4)
    assert "the sightings of 'same' start again at 0: the shards have different numbers of counters" in caplog.text
    assert [*found] == ["other"]
    assert (found["other"].counters, found["other"].counted) == (1024, 21)
    assert (read_counters(tmp_path / "joined", found["other"]).values == 2).all()
