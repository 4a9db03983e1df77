"""The coordinator: recovery in place, what it keeps of variables, and calls that arrive twice."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from faulty import FaultyCluster
from stress.lockstep import LockstepChecker
from twins import ADAM, train, twin_of

import kvemb
import kvemb.cluster
from kvemb.cluster.durability.checkpointing import Checkpointing
from kvemb.errors import BackendUnavailable, ShardLost, TransferError
from kvemb.handle import inside

KEYS = np.arange(200)
ONES = np.ones((200, 2), np.float32)


def lose(cluster):
    """Lose the shards, as if their processes were killed."""
    inside(cluster).session.calls.transport.close()


def test_all_go_back_to_the_last_checkpoint_in_place_and_on(open_cluster, tmp_path):
    cluster = open_cluster(3, url=tmp_path / "series")
    twin = twin_of(cluster, KEYS)
    kept, models = None, {}
    for seed in range(3):
        train(twin, 10 * seed)
        models[cluster.checkpoint().number] = twin.model.copy()
        train(twin, 10 * seed + 1)
        lose(cluster)
        with pytest.raises(ShardLost, match=r"did not answer a call of lookup, sent 5 times: .*; recover\(\) takes"):
            twin.variable.lookup(KEYS)
        for call in (cluster.checkpoint, twin.variable.size, lambda: list(cluster.variables)):
            with pytest.raises(ShardLost):
                call()
        back = cluster.recover()
        kept = models[back.number]
        assert back.number == seed + 1
        assert back.steps == {"table": kept.step}
        assert back.seconds > 0
        assert "did not answer" in back.lost
        twin = LockstepChecker(twin.variable, kept)
        twin.check_export()
        assert inside(twin.variable).entry().step == kept.step
    train(twin, 99)
    cluster.close()
    twin_of(open_cluster(2, url=tmp_path / "series"), KEYS, twin.model).check_export()


def test_without_a_checkpoint_it_begins_again(open_cluster, cluster, tmp_path):
    saved = open_cluster(2, url=tmp_path / "series")
    table = saved.get_variable("table", dim=2)
    table.upsert(KEYS, ONES)
    back = saved.recover()
    assert (back.number, back.steps) == (None, {})
    assert back.lost == "nothing, no shard was lost"
    assert table.size() == 0
    with pytest.raises(ValueError, match="opened without a url, so it has no checkpoint"):
        cluster.recover()


def test_variables_stay_valid_whatever_the_checkpoint_has(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    old, dropped = (cluster.get_variable(name, dim=2, optimizer=ADAM) for name in ("old", "dropped"))
    for table in (old, dropped):
        table.upsert(KEYS, ONES)
    cluster.checkpoint()
    cluster.drop_variable("dropped")
    new = cluster.get_variable("new", dim=2)
    new.upsert(KEYS, ONES)
    old.optimizer = kvemb.optimizers.Adam(0.25, bias_correction="global")
    old.clear()
    batches = old.export_batches(5)
    lose(cluster)
    cluster.recover()
    assert sorted(cluster.variables) == ["dropped", "new", "old"]
    assert [old.size(), new.size(), cluster.variables["dropped"].size()] == [200, 0, 200]
    assert new.lookup([1]).tolist() == [[0, 0]]
    assert old.optimizer.learning_rate == 0.25
    old.apply_gradients([1], ONES[:1])
    assert abs(old.lookup([1])[0, 0] - 0.75) < 1e-3, "shards have the rate that was set before the loss, too"
    with pytest.raises(ShardLost):
        list(batches)


def test_each_client_must_know_and_the_first_one_does_it(open_cluster, tmp_path, connect):
    first = open_cluster(2, url=tmp_path / "series")
    table = first.get_variable("table", dim=2)
    table.upsert(KEYS, ONES)
    first.checkpoint()
    table.upsert(KEYS, 2 * ONES)
    second = connect()
    other = second.variables["table"]
    lose(first)
    with pytest.raises(ShardLost):
        table.lookup(KEYS)
    found, threads = [], []
    for client in (first, second, first):
        threads.append(threading.Thread(target=lambda client=client: found.append(client.recover())))
    for thread in threads[:1]:
        thread.start()
        thread.join()
    with pytest.raises(ShardLost):
        other.lookup(KEYS)  # it has not heard
    with pytest.raises(ShardLost):
        second.checkpoint()
    threads[1].start()
    threads[1].join()
    assert found[0] == found[1]
    assert (other.lookup(KEYS) == 1).all()
    other.upsert(KEYS, 3 * ONES)
    assert (table.lookup(KEYS) == 3).all()


def test_a_loss_that_one_client_finds_stops_the_others(open_cluster, tmp_path, connect):
    """Another client has not called the lost shard; it hears of the loss all the same, and no checkpoint is made."""
    first = open_cluster(2, url=tmp_path / "series")
    table = first.get_variable("table", dim=2)
    second = connect()
    other = second.variables["table"]
    inside(first).session.calls.lose(ShardLost("shard 1 cannot be reached from here"))
    with pytest.raises(ShardLost, match="cannot be reached from here"):
        table.upsert(KEYS, ONES)
    with pytest.raises(ShardLost, match="cannot be reached from here"):
        second.checkpoint()
    with pytest.raises(ShardLost, match="cannot be reached from here"):
        other.upsert(KEYS, ONES)
    first.recover()
    second.recover()
    other.upsert(KEYS, ONES)


def test_a_checkpoint_finds_that_the_disk_is_gone(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    cluster.get_variable("table", dim=1).upsert(np.arange(100), np.ones((100, 1), np.float32))
    (disk,) = (tmp_path / "scratch").glob("*/shard-0000")
    shutil.rmtree(disk.rename(disk.with_name("gone")))  # at one moment: its database goes on making files
    with pytest.raises(ShardLost, match="shard 0 is lost"):
        cluster.checkpoint()
    cluster.recover()


def test_a_recovery_that_fails_can_be_repeated(open_cluster, tmp_path, monkeypatch):
    cluster = open_cluster(2, url=tmp_path / "series")
    table = cluster.get_variable("table", dim=2)
    table.upsert(KEYS, ONES)
    cluster.checkpoint()
    coordinator = inside(cluster)._coordinator.transport._callee
    make = coordinator._make

    def fails(plan):
        monkeypatch.setattr(coordinator, "_make", make)
        raise TransferError("unreachable")

    monkeypatch.setattr(coordinator, "_make", fails)
    lose(cluster)
    with pytest.raises(TransferError):
        cluster.recover()
    with pytest.raises(ShardLost):
        table.lookup(KEYS)
    assert cluster.recover().number == 1
    assert (table.lookup(KEYS) == 1).all()


def test_threads_of_a_client_that_recover_from_one_loss_go_back_once(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    table = cluster.get_variable("table", dim=2)
    cluster.checkpoint()
    lose(cluster)

    def fails() -> None:
        with pytest.raises(ShardLost):
            table.lookup(KEYS)

    with ThreadPoolExecutor(1) as other:
        other.submit(fails).result()
        fails()
        first = cluster.recover()
        table.upsert(KEYS, ONES)
        assert other.submit(cluster.recover).result() is first
        assert (table.lookup(KEYS) == 1).all(), "nothing went back again"
        assert other.submit(cluster.recover).result() is not first, "it was asked to"
    assert table.size() == 0


def test_scans_see_whole_calls_and_clear_leaves_none_of_before(tmp_path):
    """Clients over faulty transports add 1 to a whole group at a time."""
    faulty = FaultyCluster(tmp_path, 3, 0.1, tmp_path / "series")
    table = faulty.first.get_variable("table", dim=1, optimizer=kvemb.optimizers.SGD(1.0))
    groups, stop = np.arange(160).reshape(20, 8), threading.Event()

    def train(client, seed):
        mine, chance = client.variables["table"], np.random.default_rng(seed)
        while not stop.is_set():
            mine.apply_gradients(groups[chance.integers(20)], np.full((8, 1), -1, np.float32))

    threads = [threading.Thread(target=train, args=(faulty.client(), seed)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            keys, values = table.export()
            rows = dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))
            for group in groups.tolist():
                assert len({rows.get(key) for key in group}) == 1, "half of a call"
            if number % 3 == 2:
                table.clear()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    faulty.first.close()


class Telling:
    """A transport, each of whose calls meets what `tell` does first."""

    def __init__(self, transport, tell):
        self.shards, self.close, self.ping = transport.shards, transport.close, transport.ping
        self._transport, self._tell = transport, tell

    def call(self, *given):
        self._tell()
        return self._transport.call(*given)


def test_a_report_of_the_old_shards_does_not_lose_the_new_ones(open_cluster, tmp_path, monkeypatch):
    cluster = open_cluster(2, url=tmp_path / "series")
    table = cluster.get_variable("table", dim=2)
    coordinator = inside(cluster)._coordinator.transport._callee
    make = coordinator._make
    for generation in range(3):
        monkeypatch.setattr(
            coordinator, "_make",
            lambda plan, old=generation: Telling(make(plan), lambda: coordinator.report(old, "an old shard is lost")),
        )  # fmt: skip
        lose(cluster)
        cluster.recover()
        table.upsert(KEYS, ONES)
        cluster.checkpoint()
    assert table.size() == 200


def test_a_checkpoint_that_a_recovery_overtakes_is_not_made_of_older_rows(open_cluster, tmp_path, monkeypatch, connect):
    first = open_cluster(2, url=tmp_path / "series")
    second = connect()
    table = first.get_variable("table", dim=2)
    first.checkpoint()
    table.upsert(KEYS, ONES)
    start = Checkpointing.start

    def overtaken(checkpointing, *given):
        second.recover()
        return start(checkpointing, *given)

    monkeypatch.setattr(Checkpointing, "start", overtaken)
    with pytest.raises(ShardLost):
        first.checkpoint()
    monkeypatch.undo()
    assert first.recover().number == first.last_checkpoint == 1
    assert table.size() == 0
    assert first.checkpoint().number > 1


def test_a_client_of_another_version_is_refused(open_cluster):
    coordinator = inside(open_cluster(1))._coordinator.transport._callee
    with pytest.raises(BackendUnavailable, match=r"the cluster runs kvemb .*, but this program has 0\.0\.0"):
        coordinator.join("0.0.0")


def test_calls_of_it_that_arrive_twice_or_get_no_answer_are_made_once(tmp_path):
    faulty = FaultyCluster(tmp_path, 2, 0.3, tmp_path / "series")
    clients = [faulty.first, faulty.client()]
    twin, numbers = twin_of(clients[0], KEYS), []
    for seed in range(4):
        client = clients[seed % 2]
        twin = LockstepChecker(client.get_variable("table"), twin.model)
        inside(client).session.exchange()
        train(twin, seed)
        inside(client).session.exchange()
        numbers.append(client.checkpoint().number)
        client.get_variable("other", dim=1)
        client.drop_variable("other")
    assert numbers == [1, 2, 3, 4]
    twin.check_export()
    clients[1].close()
    clients[0].close()
