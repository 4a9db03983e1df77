"""Shards on Ray: the same results, whole checkpoints, lost shards, and errors that say what is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from stress.lockstep import LockstepChecker
from twins import train, twin_of

import kvemb
import kvemb.cluster
from kvemb.cluster import ray_actors
from kvemb.cluster.calls import MAX_ATTEMPTS, Timeouts
from kvemb.cluster.coordination import lease
from kvemb.cluster.making import Plan
from kvemb.cluster.ray_actors import ShardActor
from kvemb.cluster.router import Router
from kvemb.cluster.transport import Unanswered
from kvemb.errors import BackendUnavailable, CheckpointNotFound, Locked, SchemaMismatch, ShardLost
from kvemb.handle import inside
from kvemb.installed import pip_install

KEYS = np.arange(-50, 250)
HOW = {"memory_budget": "4MiB"}


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kvemb[cluster]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)  # no GPUs
        yield ray
        ray.shutdown()


# Ray's own warnings; and it takes seconds to start a process.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def ways_of(cluster):
    """How calls with rows reach the shards."""
    return {link._address[:5] for link in inside(cluster).session.calls.transport._links}


def test_actors_give_what_one_store_gives_and_any_number_goes_on(ray, tmp_path):
    model, told = None, []
    for seed, (shards, way) in enumerate(((2, "kvemb"), (3, "grpc:"))):
        cluster = kvemb.cluster.open(
            tmp_path / "series", shards=shards, scratch=tmp_path / "scratch", **HOW,
            progress=lambda done, total: told.append((done, total)),
        )  # fmt: skip
        if way == "grpc:":
            inside(cluster).session.calls.transport.node = "another node"
        twin = twin_of(cluster, KEYS, model)
        twin.check_export(50)
        train(twin, seed)
        twin.check_export()
        assert ways_of(cluster) == {way}
        assert len(cluster.stats_by_shard) == shards
        assert [on(ray, actor, lambda _: ray.get_gpu_ids()) for actor in actors_of(cluster)] == [[]] * shards
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
    twin_of(alone, KEYS, model).check_export()
    alone.close()


def actors_of(cluster):
    return inside(cluster).session.calls.transport.actors


def lose(call, seconds=120):
    """Call until a shard counts as lost; returns the error."""
    begun = time.monotonic()
    with pytest.raises(ShardLost) as raised:  # noqa: PT012
        while time.monotonic() < begun + seconds:
            call()
    return raised.value


def test_after_a_loss_the_whole_cluster_goes_back_to_its_last_checkpoint_and_on(ray, tmp_path):
    cluster = kvemb.cluster.open(tmp_path / "series", shards=2, scratch=tmp_path / "scratch", **HOW)
    twin = twin_of(cluster, KEYS)
    train(twin, 0)
    cluster.checkpoint()
    kept = twin.model.copy()
    train(twin, 1)
    ray.kill(actors_of(cluster)[1])
    lost = lose(lambda: twin.variable.lookup(KEYS))
    what = r"shard 1 did not answer a call of lookup, sent 5 times: its process has ended; recover\(\) takes .*"
    assert re.fullmatch(what, str(lost))
    assert lost.__suppress_context__, "no traceback of Ray's is printed"
    (note,) = lost.__notes__
    assert note.startswith("ActorDiedError: The actor is dead because"), "what Ray knows is told in one line"
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
    with kvemb.restore(tmp_path / "series", tmp_path / "alone") as alone:
        twin_of(alone, KEYS, twin.model).check_export()


def on(ray, actor, function):
    """Call a function with an actor, in its process."""
    return ray.get(actor.__ray_call__.remote(function), timeout=60)


def test_shards_run_with_the_priority_of_the_process_that_waits_for_them(ray, tmp_path):
    with kvemb.cluster.open(tmp_path / "series", shards=1, scratch=tmp_path / "scratch", **HOW) as cluster:
        (shard,) = inside(cluster).session.calls.transport.actors
        assert on(ray, shard, lambda _: os.getpriority(os.PRIO_PROCESS, 0)) == os.getpriority(os.PRIO_PROCESS, 0)


def test_when_the_coordinator_is_killed_every_client_is_told_and_the_cluster_opens_again_at_once(ray, tmp_path):
    """Its URL is no directory for fsspec, so that there is a lease."""
    at = {"url": "dir://series", "options": {"path": str(tmp_path), "target_protocol": "file"}}
    cluster = kvemb.cluster.open(shards=1, scratch=tmp_path / "scratch", **at, **HOW)
    table = cluster.get_variable("table", dim=2)
    table.upsert(KEYS, np.ones((300, 2), np.float32))
    cluster.checkpoint()
    table.upsert(KEYS, np.zeros((300, 2), np.float32))
    other = kvemb.cluster.connect(**at)
    theirs = other.variables["table"]
    assert (tmp_path / "series" / "LEASE").exists()
    coordinator = inside(cluster)._coordinator.transport.actors[0]
    os.kill(on(ray, coordinator, lambda _: os.getpid()), signal.SIGKILL)
    for call in (
        lambda: table.lookup(KEYS),
        lambda: theirs.upsert([1], [[1.0, 1]]),
        cluster.checkpoint,
        lambda: other.get_variable("more", dim=1),
        cluster.recover,
        other.recover,
    ):
        message = str(lose(call))
        assert "the cluster's coordinator has ended" in message
        assert message.endswith("open the cluster again")
        assert "has not answered" not in message, "Ray tells that its process has ended"
    left = (tmp_path / "series" / "LEASE").read_bytes()
    assert lease._has_ended(lease._fields(left)), "the lease of the killed one is waited for"
    again = kvemb.cluster.open(scratch=tmp_path / "scratch", **at, **HOW)
    assert (again.variables["table"].lookup(KEYS) == 1).all()
    for each in (other, cluster, again):
        each.close()


def test_a_shard_or_a_disk_that_hangs_is_lost_after_the_stated_time(ray, tmp_path):
    """The time is short only for calls of the shard that hangs: a sound one may be slow on a busy machine."""
    cluster = kvemb.cluster.open(tmp_path / "series", shards=2, scratch=tmp_path / "scratch", answer_seconds=300, **HOW)
    table = cluster.get_variable("table", dim=2)
    table.upsert(KEYS, np.ones((300, 2), np.float32))
    cluster.checkpoint()
    theirs = KEYS[Router(2).shards_of(KEYS) == 1]

    def hang(*_):
        time.sleep(1000)

    on(ray, actors_of(cluster)[1], lambda actor: setattr(actor._shard, "change", hang))
    inside(cluster).session.calls.timeouts = Timeouts(silent=1, ping=60, most=2)
    message = str(lose(lambda: table.upsert(theirs, np.zeros((theirs.size, 2), np.float32))))
    assert "shard 1 has not answered a call of change for 2 seconds" in message
    with pytest.raises(ShardLost):
        cluster.checkpoint()
    assert cluster.recover().number == 1

    def hang_with_its_disk(actor):
        from kvemb.cluster import ray_actors

        ray_actors.probe = hang
        actor._shard.push = hang

    def wait_less(actor):
        actor._coordinator.calls.timeouts = Timeouts(silent=5, ping=5)

    on(ray, actors_of(cluster)[0], hang_with_its_disk)
    on(ray, inside(cluster)._coordinator.transport.actors[0], wait_less)
    message = str(lose(cluster.checkpoint))
    assert "shard 0 has not answered a call of push and a ping for 10 seconds: its process or its disk hangs" in message
    assert cluster.recover().number == 1
    assert (table.lookup(KEYS) == 1).all()
    assert cluster.checkpoint().number == 3, "the second was begun"
    cluster.close()


def test_each_shard_gets_gpus_of_ray_if_it_is_to_have_memory_there(ray, tmp_path):
    with kvemb.cluster.open(tmp_path / "series", shards=2, device_memory="64MiB", **HOW) as cluster:
        assert sorted(on(ray, actor, lambda _: ray.get_gpu_ids()) for actor in actors_of(cluster)) == [[0], [1]]
        given = [
            on(ray, actor, lambda actor: inside(actor._shard._store).budgets._device_memory)
            for actor in actors_of(cluster)
        ]
        assert given == [64 << 20] * 2
        if importlib.util.find_spec("cupy") is None:
            with pytest.raises(BackendUnavailable, match=r"device 'gpu:0' is not available: .*install CuPy"):
                cluster.get_variable("table", dim=2, devices=["gpu"])
        cluster.get_variable("table", dim=2).upsert([1], [[1.0, 1]])
    with kvemb.cluster.open(tmp_path / "series", shards=1, gpus=0.5, **HOW) as cluster:
        assert [on(ray, actor, lambda _: len(ray.get_gpu_ids())) for actor in actors_of(cluster)] == [1]
    with pytest.raises(BackendUnavailable, match=r"2 shards need 2 GPUs each, .* has 2 in all; add nodes, or pass"):
        kvemb.cluster.open(tmp_path / "series", shards=2, gpus=2, **HOW)


CLIENT = """
import sys
import numpy as np, ray, kvemb, kvemb.cluster
ray.init(address=sys.argv[1], log_to_driver=False)
cluster = kvemb.cluster.connect(sys.argv[2], wait_seconds=60)
cluster.variables["table"].upsert([1, 2], np.ones((2, 2), np.float32))
cluster.get_variable("more", dim=1, restrict_policy=kvemb.FrequencyRestrictPolicy()).lookup([1, 2])
print(cluster.checkpoint().number, flush=True)
cluster.close()
table = kvemb.cluster.connect(sys.argv[2]).variables["table"]
for _ in range(20):
    table.upsert([3, 4, 5], np.ones((3, 2), np.float32))
print("called", flush=True)
sys.stdin.read()
"""


def test_other_processes_are_clients_and_one_that_is_killed_stops_nobody(ray, tmp_path):
    with kvemb.cluster.open(tmp_path / "series", shards=2, **HOW) as cluster:
        assert inside(cluster).shared
        table = cluster.get_variable("table", dim=2)
        command = [sys.executable, "-c", CLIENT, ray.get_runtime_context().gcs_address, str(tmp_path / "series")]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert [client.stdout.readline() for _ in range(2)] == ["1\n", "called\n"]
        assert (table.lookup([1, 2]) == 1).all()
        assert cluster.last_checkpoint == 1
        assert list(cluster.variables) == ["more", "table"]
        client.kill()  # between calls: one that is killed in the middle of a call loses the cluster
        client.communicate()
        assert cluster.checkpoint().number == 2
        assert (table.lookup([3, 4, 5]) == 1).all()


def test_a_url_has_one_cluster_and_what_a_shard_raises_when_it_is_made_is_raised(ray, tmp_path):
    with kvemb.cluster.open(tmp_path / "series", shards=1, **HOW) as cluster:
        cluster.get_variable("table", dim=2).upsert([1, 2, 3], np.ones((3, 2), np.float32))
        with pytest.raises(Locked, match="is open elsewhere on this Ray cluster"):
            kvemb.cluster.open(tmp_path / "series", shards=1, **HOW)
        with pytest.raises(BackendUnavailable, match=r"no cluster has opened .* in this Ray cluster within 0 s"):
            kvemb.cluster.connect(tmp_path / "other", wait_seconds=0)
    with pytest.raises(ValueError, match="memory://here is in this process's memory, which Ray's shards cannot reach"):
        kvemb.cluster.open("memory://here", shards=1, **HOW)
    (tmp_path / "file").touch()  # the url's name is free again
    with pytest.raises(kvemb.errors.ColdStoreError, match="cannot write to"):
        kvemb.cluster.open(tmp_path / "series", scratch=tmp_path / "file", **HOW)
    for manifest in (tmp_path / "series" / "shards").glob("*/checkpoints/*.json"):
        manifest.unlink()
    with pytest.raises(CheckpointNotFound, match="no checkpoint 00000001"):
        kvemb.cluster.open(tmp_path / "series", scratch=tmp_path / "scratch", **HOW)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_another_version_on_a_node_is_named():
    with pytest.raises(
        BackendUnavailable, match=r"a node has kvemb .*, but the program that opens the cluster has 0\.0\.0"
    ):
        ShardActor().open(Plan(1, None, {}, None, HOW), 0, None, b"", "0.0.0")


def test_shards_whose_process_ends_before_they_are_made_are_made_again(monkeypatch):
    """As on a node that is lost, but not known to be."""
    ends = [True, True, False]

    def made(*_):
        if ends.pop(0):
            raise Unanswered("the actor died")
        return "made"

    monkeypatch.setattr(ray_actors, "_made_once", made)
    assert ray_actors._made_on_ray(None, None, None, None) == "made"
    ends += [True] * MAX_ATTEMPTS
    with pytest.raises(ShardLost, match="a shard was lost while it was started: the actor died; try again"):
        ray_actors._made_on_ray(None, None, None, None)
    assert ends == []


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendUnavailable, match=re.escape(pip_install("cluster"))):
        kvemb.cluster.open(shards=2)

    def init(**arguments):
        raise ConnectionError("nobody there")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(BackendUnavailable, match=r"no Ray cluster can be reached: nobody there; first call ray\.init"):
        kvemb.cluster.open(shards=2)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(
        BackendUnavailable, match=r"no Ray cluster can be reached: RAY_ADDRESS is 127\.0\.0\.1:1: .*efused"
    ):
        kvemb.cluster.open(shards=2)
    with pytest.raises(ValueError, match="transport must be 'ray' or 'local', got 'dask'"):
        kvemb.cluster.open(shards=2, transport="dask")
