"""Checkpoints of a cluster: whole calls, complete or absent, any number of shards, one machine."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from faulty import FaultyCluster
from stress.lockstep import check_same
from twins import ADAM, Fading, train, twin_of

import kvemb
import kvemb.cluster
from kvemb import opening
from kvemb.cluster import making
from kvemb.cluster.durability.cluster_series import ClusterSeries
from kvemb.cluster.ledger import Stamp
from kvemb.cluster.messages import ChangeRequest
from kvemb.cluster.session import Session
from kvemb.durability.manifest import checksum_of, text_of
from kvemb.engine.engine import Engine
from kvemb.errors import (
    BackendUnavailable,
    CheckpointNotFound,
    Closed,
    ColdStoreError,
    Corruption,
    Locked,
    SchemaMismatch,
    ShardLost,
    TransferError,
    UnsupportedFormat,
)
from kvemb.handle import inside
from kvemb.offline.transfer import Remote

KEYS = np.arange(-50, 250)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [kvemb.FrequencyRestrictPolicy(half_life=9.0), Fading()], ids=["built in", "own"])
def test_any_number_of_shards_goes_on_from_any_checkpoint(open_cluster, tmp_path, policy):
    model = None
    counts = (4, 4, 7, 3, 1, 2) if policy.kind != "custom" else (2, 3)
    for seed, shards in enumerate(counts):
        cluster = open_cluster(shards, url=tmp_path / "series")
        twin = twin_of(cluster, KEYS, model, policy=policy)
        twin.check_export()
        train(twin, seed)
        twin.check_export()
        model = twin.model
        cluster.close()
    assert ClusterSeries(tmp_path / "series").numbers() == list(range(1, len(counts) + 1))
    alone = kvemb.restore(tmp_path / "series", tmp_path / "alone", memory_budget="4MiB")
    twin = twin_of(alone, KEYS, model, policy=policy)
    twin.check_export()
    train(twin, 99)
    twin.check_export()
    alone.check(deep=True)
    alone.close()
    assert kvemb.verify(tmp_path / "alone", deep=True)


def test_a_checkpoint_has_the_state_of_its_cut_and_stays(open_cluster, tmp_path):
    cluster = open_cluster(3, url=tmp_path / "series")
    assert cluster.last_checkpoint is None
    cluster.get_variable("memory", dim=1, checkpoint=False).upsert([1], [[1.0]])
    twin, states = twin_of(cluster, KEYS), {}
    for seed in range(3):
        train(twin, seed)
        saved = cluster.checkpoint()
        states[saved.number] = twin.model.copy()
        assert cluster.last_checkpoint == saved.number
        assert saved.variables["table"].rows == twin.model.size
        assert list(saved.variables) == ["table"]
    train(twin, 9)
    cluster.close(flush=False)
    for number, state in states.items():
        place = tmp_path / f"at-{number}"
        alone = kvemb.restore(tmp_path / "series" / f"{number:08d}", place, memory_budget="4MiB")
        twin_of(alone, KEYS, state).check_export()
        alone.close()


@pytest.mark.slow
def test_close_writes_one_of_other_shards_or_an_earlier_state(open_cluster, tmp_path):
    def numbers():
        return ClusterSeries(tmp_path / "series").numbers()

    with open_cluster(2, url=tmp_path / "series") as cluster:
        cluster.get_variable("table", dim=1)
    with open_cluster(3, url=tmp_path / "series") as cluster:
        pass
    assert numbers() == [1, 2], "of another number of shards"
    with open_cluster(3, url=tmp_path / "series", number=1) as cluster:
        pass
    assert numbers() == [1, 2, 3], "the newest is now what the first was"


@pytest.mark.slow
def test_whatever_changes_is_saved_by_close(open_cluster, tmp_path):
    url, ones = tmp_path / "series", np.ones((3, 2), np.float32)
    with open_cluster(2, url=url) as cluster:
        adam, policy = kvemb.optimizers.Adam(0.5), kvemb.FrequencyRestrictPolicy()
        cluster.get_variable("table", dim=2, optimizer=adam, restrict_policy=policy).upsert([7], ones[:1])
    changes: tuple[Callable[[Any, Any], object], ...] = (
        lambda _, table: table.upsert([1, 2, 3], ones),
        lambda _, table: table.remove([1]),
        lambda _, table: table.lookup([2]),
        lambda _, table: table.lookup([]),
        lambda _, table: table.apply_gradients([3], ones[:1]),
        lambda _, table: table.restrict(1),
        lambda _, table: table.clear(),
        lambda cluster, _: cluster.get_variable("table", optimizer=kvemb.optimizers.Adam(0.1)),
        lambda cluster, _: cluster.get_variable("other", dim=1),
        lambda cluster, _: cluster.drop_variable("other"),
    )
    with open_cluster(2, url=url) as cluster:
        table = cluster.variables["table"]
        table.lookup([1], touch=False)
        table.prefetch([1])
        assert len(list(table.export_batches(10))) == 1
        assert table.restrict(3) == 0
    assert ClusterSeries(url).numbers() == [1], "nothing has changed"
    for number, change in enumerate(changes, start=1):
        cluster = open_cluster(2, url=url)
        table = cluster.variables["table"]
        if number == 5:
            table = cluster.get_variable("table", optimizer=kvemb.optimizers.Adam(0.5))
        change(cluster, table)
        cluster.close()
        assert ClusterSeries(url).numbers() == list(range(1, number + 2))
    with open_cluster(2, url=url) as cluster:
        cluster.variables["table"].upsert([9], ones[:1])
        cluster.recover()
    assert ClusterSeries(url).numbers()[-1] == len(changes) + 1, "a cluster that went back has nothing to save"


@pytest.mark.slow
def test_close_loses_no_call_of_other_threads(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    table = cluster.get_variable("table", dim=1, optimizer=kvemb.optimizers.SGD(1.0))
    answered, begun, told = [0] * 4, threading.Barrier(5), list[str]()

    def train(thread: int) -> None:
        keys, grads = np.arange(20) + 20 * thread, np.full((20, 1), -1, np.float32)
        begun.wait()
        try:
            while True:
                table.apply_gradients(keys, grads)
                answered[thread] += 1
        except (ShardLost, Closed) as error:
            told.append(str(error))

    threads = [threading.Thread(target=train, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.1)
    late = [cluster.lookup_async({table: [1000]}) for _ in range(20)]
    cluster.close()
    for thread in threads:
        thread.join()
    assert [each.exception() for each in late] == [None] * 20
    with open_cluster(3, url=tmp_path / "series") as again:
        rows = again.variables["table"].lookup(np.arange(80))[:, 0].reshape(4, 20)
    assert all(len(set(of_thread)) == 1 for of_thread in rows.tolist()), "each call is on all shards or on none"
    assert rows[:, 0].tolist() == answered
    assert len(told) == 4
    assert all("closed" in each and "recover()" not in each for each in told), told


def test_a_client_that_connects_while_the_cluster_is_closed_finds_none(open_cluster, tmp_path, monkeypatch):
    publish, found = ClusterSeries.publish, list[str]()

    def connecting(series: ClusterSeries, *given: Any) -> None:
        other = threading.Thread(target=connect)
        other.start()
        time.sleep(0.2)  # it waits for the last cut
        publish(series, *given)
        joined.append(other)

    def connect() -> None:
        try:
            kvemb.cluster.connect(tmp_path / "series", transport="local", wait_seconds=0).close()
        except BackendUnavailable as error:
            found.append(str(error))

    joined: list[threading.Thread] = []
    cluster = open_cluster(2, url=tmp_path / "series")
    cluster.get_variable("table", dim=1)
    monkeypatch.setattr(ClusterSeries, "publish", connecting)
    cluster.close()
    joined[0].join()
    assert len(found) == 1
    assert "open it with kvemb.cluster.open" in found[0]


def test_it_is_closed_by_two_threads_and_ctrl_c_waits_until_it_is(open_cluster, tmp_path, monkeypatch):
    publish, ask, begun, second = ClusterSeries.publish, Session.ask, threading.Event(), threading.Event()

    def slow(series: ClusterSeries, *given: Any) -> None:
        begun.set()
        assert second.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        publish(series, *given)

    def asked(session: Session, name: str, *given: Any) -> Any:
        if name == "finish" and threading.current_thread() is threading.main_thread():
            second.set()
        return ask(session, name, *given)

    monkeypatch.setattr(ClusterSeries, "publish", slow)
    monkeypatch.setattr(Session, "ask", asked)
    cluster = open_cluster(2, url=tmp_path / "series")
    cluster.get_variable("table", dim=1).upsert([1], np.ones((1, 1), np.float32))
    with ThreadPoolExecutor(1) as other:
        started = other.submit(cluster.close)
        begun.wait()
        with pytest.raises(KeyboardInterrupt):
            cluster.close()
        assert cluster.state.gone
        started.result()
    monkeypatch.undo()
    with open_cluster(2, url=tmp_path / "series") as again:
        assert again.variables["table"].lookup([1]).tolist() == [[1]]


def test_a_close_that_fails_lets_calls_go_on(open_cluster, tmp_path, monkeypatch):
    cluster = open_cluster(2, url=tmp_path / "series")
    table = cluster.get_variable("table", dim=1)
    table.upsert([1, 2, 3], np.ones((3, 1), np.float32))

    def fail(*_: Any) -> None:
        raise TransferError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(ClusterSeries, "publish", fail)
        with pytest.raises(TransferError, match="no room"):
            cluster.close()
    table.upsert([2], np.full((1, 1), 2, np.float32))
    cluster.get_variable("other", dim=1)
    cluster.close()
    with open_cluster(2, url=tmp_path / "series") as again:
        assert again.variables["table"].lookup([1, 2, 3])[:, 0].tolist() == [1, 2, 1]
        assert set(again.variables) == {"other", "table"}


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 3])
def test_an_earlier_checkpoint_can_be_gone_on_from(open_cluster, tmp_path, shards):
    url, keys = tmp_path / "series", np.arange(200)
    with open_cluster(2, url=url) as cluster:
        table = cluster.get_variable("table", dim=1)
        for number in (1, 2, 3):
            table.upsert(keys[: 100 - number], np.full((100 - number, 1), number, np.float32))
            assert cluster.checkpoint(extra={"number": number}).number == number
    series = kvemb.CheckpointManager(tmp_path / "pulled")
    replica = kvemb.restore(series.pull(url), tmp_path / "replica")  # the newest

    with open_cluster(shards, url=url, number=1) as cluster:
        table = cluster.variables["table"]
        assert (cluster.last_checkpoint, table.size(), float(table.lookup(keys).max())) == (1, 99, 1.0)
        table.upsert([150], [[9.0]])
        assert cluster.recover().number == 1
        assert (table.size(), float(table.lookup(keys).max())) == (99, 1.0)
        table.upsert([151], [[4.0]])
        assert cluster.checkpoint().number == 4, "later ones stay"
        table.clear()
        assert cluster.recover().number == 4
        assert (table.size(), float(table.lookup(keys).max())) == (100, 4.0)
        assert kvemb.cluster.latest(url, number=3)[1].extra == {"number": 3}
        expected = table.lookup(keys)
    replica.apply_delta(series.pull(url))
    assert np.array_equal(replica.variables["table"].lookup(keys), expected)
    assert replica.variables["table"].size() == 100
    replica.close()
    series.close()
    assert kvemb.cluster.verify(url, deep=True)
    with pytest.raises(CheckpointNotFound, match="there is no checkpoint 00000009"):
        kvemb.cluster.open(url, number=9, transport="local")
    assert open_cluster(None, url=url).variables["table"].size() == 100


@pytest.mark.slow
def test_later_ones_send_what_changed_and_old_ones_are_deleted(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    table = cluster.get_variable("table", dim=16)
    table.upsert(np.arange(4000), np.ones((4000, 16), np.float32))
    first = cluster.checkpoint()
    table.upsert([1, 2, 3], np.zeros((3, 16), np.float32))
    second = cluster.checkpoint(keep=2)
    assert 0 < second.nbytes < first.nbytes / 5
    cluster.checkpoint(keep=2)
    cluster.close()
    again = open_cluster(2, url=tmp_path / "series")
    assert again.variables["table"].lookup([1, 4]).mean(axis=1).tolist() == [0, 1]
    fourth = again.checkpoint(keep=1)
    assert fourth.number == 4
    assert fourth.nbytes < first.nbytes / 5, "a restored shard sends deltas, too"
    again.close(flush=False)
    series = ClusterSeries(tmp_path / "series")
    assert series.numbers() == [4]
    assert {tuple(series.of_shard(shard.store).numbers()) for shard in series.read(4).shards} == {(4,)}
    other = open_cluster(3, url=tmp_path / "series")
    other.checkpoint(keep=1)
    other.close(flush=False)
    assert len(list((tmp_path / "series" / "shards").iterdir())) == 3, "shards that nobody needs are gone"


def test_variables_open_as_they_are_stored(open_cluster, tmp_path):
    with open_cluster(2, url=tmp_path / "series") as cluster:
        cluster.get_variable("users", dim=2, optimizer=ADAM).apply_gradients([1], np.ones((1, 2), np.float32))
        cluster.get_variable("items", "int32", "float16", 3, initializer=kvemb.Ones())
    cluster = open_cluster(3, url=tmp_path / "series")
    assert "users: 1 row of dim 2 float32, not opened yet" in repr(cluster)
    assert list(cluster.variables) == ["items", "users"]
    items = cluster.variables["items"]
    assert (items.dim, items.key_dtype, items.value_dtype) == (3, np.int32, np.float16)
    assert items.lookup([5]).tolist() == [[1, 1, 1]]
    assert cluster.lookup({"users": [1]})["users"].shape == (1, 2)
    with pytest.raises(SchemaMismatch, match="dim=2, got dim=4"):
        cluster.get_variable("users", dim=4)
    cluster.drop_variable("users")
    cluster.checkpoint()
    cluster.close()
    assert list(open_cluster(url=tmp_path / "series", shards=None).variables) == ["items"]


def test_one_cluster_at_a_time_has_a_directory(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    with pytest.raises(Locked, match=r"the cluster at .*series is open already, by this process; close it there"):
        open_cluster(2, url=tmp_path / "series")
    cluster.close()
    open_cluster(None, url=tmp_path / "series")


def test_what_is_missing_is_told(open_cluster, cluster, tmp_path):
    with pytest.raises(ValueError, match=r"there is no checkpoint at .*, so give the number of shards"):
        open_cluster(None, url=tmp_path / "none")
    with pytest.raises(CheckpointNotFound, match="no checkpoint of a cluster at"):
        kvemb.cluster.latest(tmp_path / "none")
    with pytest.raises(ValueError, match="opened without a url"):
        cluster.checkpoint()
    with open_cluster(2, url=tmp_path / "series") as saved:
        saved.get_variable("table", dim=1).upsert([1], [[1.0]])
    with pytest.raises(CheckpointNotFound, match="no checkpoint 7"):
        kvemb.restore(tmp_path / "series" / "00000007", tmp_path / "store")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        kvemb.restore(tmp_path / "series", tmp_path / "full")
    refused = pytest.raises(UnsupportedFormat, match=r"is a cluster's checkpoint; use kvemb\.restore")
    with refused:
        Remote(tmp_path / "series").id_of(1)


def test_damage_is_named_and_nothing_is_left(open_cluster, tmp_path):
    with open_cluster(2, url=tmp_path / "series") as cluster:
        cluster.get_variable("table", dim=4).upsert(np.arange(500), np.ones((500, 4), np.float32))
    largest = max((tmp_path / "series" / "shards").glob("*/files/*/*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(Corruption, match="damaged"):
        kvemb.restore(tmp_path / "series", tmp_path / "alone")
    for shards in (2, 3):
        with pytest.raises(Corruption, match="damaged"):
            open_cluster(shards, url=tmp_path / "series")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "series"]


@pytest.mark.slow
def test_calls_that_a_checkpoint_contains_are_not_executed_again(open_cluster, tmp_path):
    for shards in (2, 3):
        with open_cluster(shards, url=tmp_path / "series") as cluster:
            table = cluster.get_variable("table", dim=1, optimizer=kvemb.optimizers.SGD(1.0))
            table.apply_gradients(np.arange(9), np.ones((9, 1), np.float32))
            client = inside(cluster).session.client
    calls = kvemb.cluster.latest(tmp_path / "series")[1].calls
    assert len(calls[client]) > 1
    with open_cluster(2, url=tmp_path / "series") as cluster:
        table = cluster.get_variable("table")
        session = inside(cluster).session
        token, clock, *_ = session.client_variable(inside(table))
        given = np.arange(9), np.ones((9, 1), np.float32)
        change = ChangeRequest(token, "apply_gradients", given, clock.now(None))
        for number in (0, calls[client][-1]):
            again = session.calls.each("change", {0: (Stamp(client, number, 0, 1), [change])})
            assert again == {0: None}
        assert (table.lookup(np.arange(9)) == -2).all()


def put_calls(manifest, calls):
    """Write other calls to a cluster's manifest, with a checksum that fits."""
    data = json.loads(manifest.read_text())
    data.pop("checksum")
    data["calls"] = calls
    manifest.write_text(text_of({"checksum": checksum_of(data), **data}))


def test_hostile_calls_are_damage_and_every_store_is_closed(open_cluster, tmp_path, monkeypatch):
    """The calls of shards were not checked, and stores stayed open. test_manifest.py has what is refused."""
    with open_cluster(2, url=tmp_path / "series") as cluster:
        cluster.get_variable("table", dim=1).upsert([1, 2], [[1.0], [2.0]])
    manifest = tmp_path / "series" / "checkpoints" / "00000001.json"
    whole, opened, make = json.loads(manifest.read_text())["calls"], [], opening.open_at
    monkeypatch.setattr(opening, "open_at", lambda *given, **how: opened.append(make(*given, **how)) or opened[-1])
    put_calls(manifest, {"a" * 32: [3, 2]})
    for shards in (2, 3):
        with pytest.raises(Corruption, match=r"00000001\.json is damaged: calls.* must .*; use another checkpoint"):
            open_cluster(shards, url=tmp_path / "series")
    put_calls(manifest, whole)
    assert opened == []
    monkeypatch.setattr(making, "ShardCheckpoints", lambda *given: given[9])
    for shards in (2, 3):
        with pytest.raises(IndexError):  # of whatever kind: the shard cannot be made
            open_cluster(shards, url=tmp_path / "series")
    assert {store.state.closed for store in opened} == {True}
    monkeypatch.undo()
    assert open_cluster(2, url=tmp_path / "series").variables["table"].size() == 2


def test_restore_makes_one_store_of_chosen_variables(open_cluster, tmp_path):
    told = []
    for shards in (1, 3):
        series = tmp_path / f"series-{shards}"
        with open_cluster(shards, url=series) as cluster:
            for name in ("users", "items"):
                cluster.get_variable(name, dim=1).upsert(np.arange(9), np.ones((9, 1), np.float32))
        store = kvemb.restore(series, tmp_path / f"store-{shards}", variables=["items"])
        assert list(store.variables) == ["items"]
        assert store.variables["items"].size() == 9
        store.close()
        with pytest.raises(KeyError, match="no variable 'none'; it has items, users"):
            kvemb.restore(series, tmp_path / "other", variables=["none"])
        kvemb.restore(series, tmp_path / f"all-{shards}", progress=lambda *rows: told.append(rows)).close()
        assert told[-1] == (18, 18)


def failing(method, error, times):
    """Return the method as one that fails so many times first."""
    failures = [error] * times

    def fails_first(*given, **named):
        if failures:
            raise failures.pop()
        return method(*given, **named)

    return fails_first


def test_the_checkpoint_after_some_that_failed_is_whole(open_cluster, tmp_path, monkeypatch):
    """Shards have files of a number that nothing at the URL tells of: it must not be taken again."""
    cluster = open_cluster(2, url=tmp_path / "series")
    twin = twin_of(cluster, KEYS)
    train(twin, 0)
    with monkeypatch.context() as broken:
        broken.setattr(Remote, "push", failing(Remote.push, TransferError("unreachable"), times=3))
        for _ in range(2):
            with pytest.raises(TransferError, match="unreachable"):
                cluster.checkpoint()
    train(twin, 1)
    with monkeypatch.context() as broken:
        broken.setattr(Engine, "start", failing(Engine.start, ColdStoreError("full"), times=1))
        with pytest.raises(ColdStoreError, match="full"):
            cluster.checkpoint()
    train(twin, 2)
    assert ClusterSeries(tmp_path / "series").numbers() == []
    number = cluster.checkpoint().number
    assert ClusterSeries(tmp_path / "series").numbers() == [number]
    cluster.close(flush=False)
    alone = kvemb.restore(tmp_path / "series", tmp_path / "alone")
    twin_of(alone, KEYS, twin.model).check_export()
    alone.close()


GROUPS, GROUP = 20, 8
CHECKPOINTS = int(os.environ.get("KVEMB_CHECKPOINTS", 5))


@pytest.mark.slow
def test_every_checkpoint_has_each_call_on_all_shards_or_on_none(tmp_path):
    """Four clients over faulty transports: each call adds 1 to every row of a group, whose rows are on all shards."""
    faulty = FaultyCluster(tmp_path, 3, 0.15, tmp_path / "series")
    cluster, others = faulty.first, [faulty.client() for _ in range(4)]
    table = cluster.get_variable("table", dim=1, optimizer=kvemb.optimizers.SGD(1.0))
    keys = np.arange(GROUPS * GROUP).reshape(GROUPS, GROUP)
    stop, calls = threading.Event(), [0] * 4

    def trainer(number):
        chance, table = np.random.default_rng(number), others[number].variables["table"]
        while not stop.is_set():
            group = keys[chance.integers(GROUPS)]
            table.apply_gradients(np.repeat(group, 2), np.full((2 * GROUP, 1), -0.5, np.float32))
            calls[number] += 1
            if number == 0 and calls[0] % 10 == 0:
                table.lookup(group)

    threads = [threading.Thread(target=trainer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    saved = []
    try:
        for number in range(CHECKPOINTS):
            time.sleep(np.random.default_rng(number).random() * 0.02)
            saved.append(others[number % 4].checkpoint(keep=10).number)
            if len(saved) == 5:
                check_whole(tmp_path, saved)
                saved = []
        stop.set()
        for thread in threads:
            thread.join()
        rows = table.lookup(keys.reshape(-1))
        check_same("at the end", rows, np.repeat(table.lookup(keys[:, 0]), GROUP, axis=0))
        assert rows.sum() == GROUP * sum(calls), "each call was made once"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        cluster.close(flush=False)


def check_whole(folder, numbers):
    sums = []
    for number in numbers:
        with kvemb.restore(folder / "series" / f"{number:08d}", folder / f"check-{number}") as store:
            keys, values = store.variables["table"].export()
        assert keys.tolist() == [key + at for key in keys[::GROUP].tolist() for at in range(GROUP)]
        groups = values.reshape(-1, GROUP)
        assert (groups == groups[:, :1]).all(), f"checkpoint {number} has half a call"
        sums.append(values.sum())
    assert sums == sorted(sums)
