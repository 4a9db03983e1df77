"""Shards on Ray: the same results, whole checkpoints, lost shards, and errors that say what is missing."""

from __future__ import annotations

import sys
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import kvemb
import kvemb.cluster
from kvemb.cluster.checkpointing import Checkpointing
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.making import Plan
from kvemb.cluster.ray_transport import RayTransport, ShardActor
from kvemb.cluster.series import ClusterSeries
from kvemb.errors import BackendUnavailable, CheckpointNotFound, Locked, SchemaMismatch, ShardLost
from kvemb.meter import Meter
from kvemb.tools.stress.lockstep import LockstepChecker
from kvemb.tools.stress.model import Model

KEYS = np.arange(-50, 250)
HOW = {"memory_budget": "4MiB"}


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kvemb[cluster]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


# Ray's own warnings; and it takes seconds to start a process.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def twin_of(place, model=None):
    optimizer, policy = kvemb.optimizers.Adam(0.5, bias_correction="global"), kvemb.FrequencyRestrictPolicy(9.0)
    variable = place.get_variable("table", dim=2, optimizer=optimizer, restrict_policy=policy)
    fresh = Model(
        KEYS, variable.value_dtype, 2, initializer=variable.initializer, optimizer=optimizer, policy=policy
    )  # fmt: skip
    return LockstepChecker(variable, model or fresh)


def train(twin, seed):
    chance = np.random.default_rng(seed)
    for _ in range(3):
        keys = chance.choice(KEYS, 60)
        values = chance.standard_normal((60, 2)).astype(np.float32)
        twin.upsert(keys, values)
        twin.apply_gradients(keys, values)
        twin.accum(keys, values, 2 * values, chance.random(60) < 0.5)
        twin.lookup(chance.choice(KEYS, 30), touch=True)
        twin.use(keys[:9])
        twin.remove(keys[:4])
    twin.restrict(twin.model.size - 3)
    twin.check_status(KEYS)


def test_actors_give_what_one_store_gives_and_any_number_goes_on(ray, tmp_path):
    model, told = None, []
    for seed, shards in enumerate((2, 2, 3)):
        cluster = kvemb.cluster.open(
            tmp_path / "series", shards=shards, scratch=tmp_path / "scratch", **HOW,
            progress=lambda done, total: told.append((done, total)),
        )  # fmt: skip
        twin = twin_of(cluster, model)
        twin.check_export(50)
        train(twin, seed)
        twin.check_export()
        assert len(cluster.stats_by_shard) == shards
        rows = cluster.lookup_async({"table": KEYS}, touch=False).result()["table"]
        assert rows.shape == (300, 2)
        with pytest.raises(SchemaMismatch, match="dim"):
            cluster.get_variable("table", dim=3)
        pooled = kvemb.embedding_lookup_sparse(twin.variable, KEYS, [0, 100], touch=False)
        assert np.allclose(pooled.values, [rows[:100].mean(axis=0), rows[100:].mean(axis=0)], atol=1e-5)
        cluster.check()
        model = twin.model
        cluster.close()
        assert list((tmp_path / "scratch").iterdir()) == []
    assert told[-1][0] == told[-1][1] > 0
    alone = kvemb.restore(tmp_path / "series", tmp_path / "alone")
    twin_of(alone, model).check_export()
    alone.close()


def test_a_lost_shard_ends_it_and_the_last_checkpoint_is_what_there_is(ray, tmp_path):
    series = ClusterSeries(tmp_path / "series")
    transport = RayTransport(Plan(2, series.url, {}, None, HOW), str(tmp_path / "scratch"), Meter(0, None))
    cluster = kvemb.cluster.Store(Cluster(transport, series.url, lambda: None), Checkpointing(series, series.lock()))
    twin = twin_of(cluster)
    train(twin, 0)
    cluster.checkpoint()
    kept = twin.model.copy()
    train(twin, 1)
    ray.kill(transport.actors[1])
    begun = time.monotonic()
    with pytest.raises(ShardLost, match="did not answer"):  # noqa: PT012
        while time.monotonic() < begun + 20:
            twin.variable.lookup(KEYS)
    assert time.monotonic() - begun < 10
    for call in (lambda: twin.variable.lookup(KEYS), cluster.checkpoint, lambda: twin.variable.upsert([1], [[1.0, 1]])):
        with pytest.raises(ShardLost):
            call()
    cluster.close()
    again = kvemb.cluster.open(tmp_path / "series", **HOW)
    assert again.last_checkpoint == 1
    twin = twin_of(again, kept)
    twin.check_export()
    train(twin, 2)
    again.close()


def test_a_url_has_one_cluster(ray, tmp_path):
    plan = Plan(1, f"memory://{tmp_path.name}", {}, None, HOW)
    first = RayTransport(plan, None, Meter(0, None))
    with pytest.raises(Locked, match="is open elsewhere on this Ray cluster"):
        RayTransport(plan, None, Meter(0, None))
    first.close()
    deadline = time.monotonic() + 20
    while True:  # the name is free soon
        try:
            RayTransport(plan, None, Meter(0, None)).close()
            break
        except Locked:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_what_a_shard_raises_when_it_is_made_is_raised(ray, tmp_path):
    with kvemb.cluster.open(tmp_path / "series", shards=2, **HOW) as cluster:
        cluster.get_variable("table", dim=2).upsert([1, 2, 3], np.ones((3, 2), np.float32))
    (tmp_path / "file").touch()
    with pytest.raises(kvemb.errors.ColdStoreError, match="cannot write to"):
        kvemb.cluster.open(tmp_path / "series", scratch=tmp_path / "file", **HOW)
    for manifest in (tmp_path / "series" / "shards").glob("*/checkpoints/*.json"):
        manifest.unlink()
    with pytest.raises(CheckpointNotFound, match="no checkpoint 00000001"):
        kvemb.cluster.open(tmp_path / "series", scratch=tmp_path / "scratch", **HOW)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_another_version_on_a_node_is_named():
    with pytest.raises(
        BackendUnavailable, match=r"a node has kvemb .*, and the program that opens the cluster 0\.0\.0"
    ):
        ShardActor().open(Plan(1, None, {}, None, HOW), 0, None, "0.0.0")


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'kvemb\[cluster\]'"):
        kvemb.cluster.open(shards=2)

    def init(**arguments):
        raise ConnectionError("nobody there")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(BackendUnavailable, match=r"no Ray cluster can be reached: nobody there; call ray\.init\(\)"):
        kvemb.cluster.open(shards=2)
    with pytest.raises(ValueError, match="transport must be 'ray' or 'local', got 'dask'"):
        kvemb.cluster.open(shards=2, transport="dask")
