"""Shards on Ray: the same results, whole checkpoints, lost shards, and errors that say what is missing."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import kvemb
import kvemb.cluster
from kvemb.cluster.making import Plan
from kvemb.cluster.ray_transport import ShardActor
from kvemb.errors import BackendUnavailable, CheckpointNotFound, Locked, SchemaMismatch, ShardLost
from kvemb.handle import inside
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
        pending = cluster.checkpoint(block=False, files={"dense": bytes([seed])}, extra={"seed": seed})
        assert pending.result().files == ("dense",)
        (dense,) = kvemb.cluster.pull_files(tmp_path / "series", tmp_path / f"dense-{seed}").values()
        assert dense.read_bytes() == bytes([seed])
        model = twin.model
        cluster.close()
        assert list((tmp_path / "scratch").iterdir()) == []
    assert told[-1][0] == told[-1][1] > 0
    alone = kvemb.restore(tmp_path / "series", tmp_path / "alone")
    twin_of(alone, model).check_export()
    alone.close()


def actors_of(cluster):
    return inside(cluster).session.calls.transport.actors


def lose(call, seconds=20):
    """Call until a shard counts as lost; returns the message."""
    begun = time.monotonic()
    with pytest.raises(ShardLost) as raised:  # noqa: PT012
        while time.monotonic() < begun + seconds:
            call()
    return str(raised.value)


def test_after_a_loss_the_whole_cluster_goes_back_to_its_last_checkpoint_and_on(ray, tmp_path):
    cluster = kvemb.cluster.open(tmp_path / "series", shards=2, scratch=tmp_path / "scratch", **HOW)
    twin = twin_of(cluster)
    train(twin, 0)
    cluster.checkpoint()
    kept = twin.model.copy()
    train(twin, 1)
    ray.kill(actors_of(cluster)[1])
    begun = time.monotonic()
    assert "did not answer" in lose(lambda: twin.variable.lookup(KEYS))
    assert time.monotonic() - begun < 10
    for call in (lambda: twin.variable.lookup(KEYS), cluster.checkpoint, lambda: twin.variable.upsert([1], [[1.0, 1]])):
        with pytest.raises(ShardLost):
            call()
    assert "lost" in repr(cluster)
    back = cluster.recover()
    assert (back.number, cluster.last_checkpoint) == (1, 1)
    assert back.steps == {"table": kept.step}
    assert str(back).startswith("the cluster went back to checkpoint 1, of ")
    assert "recover()" not in back.lost
    twin = LockstepChecker(twin.variable, kept)
    twin.check_export()
    train(twin, 2)
    cluster.close()
    again = kvemb.cluster.open(tmp_path / "series", **HOW)
    twin_of(again, twin.model).check_export()
    again.close()


CLIENT = """
import sys
import numpy as np, ray, kvemb, kvemb.cluster
ray.init(address=sys.argv[1], log_to_driver=False)
cluster = kvemb.cluster.connect(sys.argv[2], wait_seconds=30)
table = cluster.variables["table"]
print("connected", flush=True)
if sys.argv[3] == "kill":
    sys.stdin.readline()
    while True:
        table.upsert([3, 4, 5], np.ones((3, 2), np.float32))
table.upsert([1, 2], np.ones((2, 2), np.float32))
cluster.get_variable("more", dim=1, restrict_policy=kvemb.FrequencyRestrictPolicy()).lookup([1, 2])
print(cluster.checkpoint().number, flush=True)
cluster.close()
"""


def client(ray, url, what):
    address = ray.get_runtime_context().gcs_address
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, address, str(url), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_other_processes_are_clients_and_one_that_is_killed_stops_nobody(ray, tmp_path):
    with kvemb.cluster.open(tmp_path / "series", shards=2, **HOW) as cluster:
        assert inside(cluster).shared
        table = cluster.get_variable("table", dim=2)
        output, _ = client(ray, tmp_path / "series", "end").communicate(timeout=100)
        assert output.split() == ["connected", "1"]
        assert (table.lookup([1, 2]) == 1).all()
        assert cluster.last_checkpoint == 1
        assert list(cluster.variables) == ["more", "table"]
        killed = client(ray, tmp_path / "series", "kill")
        killed.stdout.readline()
        killed.stdin.write("\n")
        killed.stdin.flush()
        time.sleep(0.5)
        killed.kill()
        killed.communicate()
        assert cluster.checkpoint().number == 2
        assert len({tuple(row) for row in table.lookup([3, 4, 5]).tolist()}) == 1, "half of a call"


def test_a_url_has_one_cluster(ray, tmp_path):
    first = kvemb.cluster.open(f"memory://{tmp_path.name}", shards=1, **HOW)
    with pytest.raises(Locked, match="is open elsewhere on this Ray cluster"):
        kvemb.cluster.open(f"memory://{tmp_path.name}", shards=1, **HOW)
    with pytest.raises(BackendUnavailable, match=r"no cluster that this Ray cluster knows has .* open, after 0 s"):
        kvemb.cluster.connect(tmp_path / "other", wait_seconds=0)
    first.close(flush=False)
    deadline = time.monotonic() + 20
    while True:  # the name is free soon
        try:
            kvemb.cluster.open(f"memory://{tmp_path.name}", shards=1, **HOW).close(flush=False)
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
