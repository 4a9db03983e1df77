"""Several clients of one cluster: what one does the others see, and steps are counted together."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from twins import Fading, train, twin_of
from waiting import wait_until

import kvemb
import kvemb.cluster
from kvemb.cluster.session import EXCHANGE_SECONDS
from kvemb.errors import BackendUnavailable, Closed, SchemaMismatch, ShardLost
from kvemb.handle import inside
from kvemb.stats import Stats

SGD = kvemb.optimizers.SGD(0.5)
ONES = np.ones((3, 2), np.float32)


@pytest.fixture
def two(open_cluster, connect, tmp_path):
    """A cluster with two clients: the one that opened it, and another."""
    return open_cluster(3, url=tmp_path / "series"), connect()


def test_variables_are_those_of_all(two):
    first, second = two
    mine = first.get_variable("table", dim=2, optimizer=SGD, initializer=kvemb.RandomUniform())
    assert list(second.variables) == ["table"]
    assert "table: open in another client" in repr(second)
    yours = second.get_variable("table", dim=2, optimizer=SGD, initializer=kvemb.RandomUniform())
    assert yours.initializer == mine.initializer
    mine.upsert([1, 2, 3], ONES)
    yours.apply_gradients([1, 2], ONES[:2])
    assert mine.lookup([1, 2, 3]).tolist() == [[0.5, 0.5], [0.5, 0.5], [1, 1]]
    with pytest.raises(SchemaMismatch, match="dim=2, got dim=3"):
        second.get_variable("table", dim=3)
    second.get_variable("late", "int32", "float64", 3).upsert([7], [[1.0, 2, 3]])
    late = first.variables["late"]
    assert (late.dim, late.key_dtype, late.lookup([7]).tolist()) == (3, np.int32, [[1, 2, 3]])
    assert first.stats.rows == 4


def test_whether_a_client_trains_a_variable_is_its_own(two):
    first, second = two
    mine = first.get_variable("table", dim=2, optimizer=SGD)
    yours = second.get_variable("table", trainable=False)
    assert (mine.trainable, yours.trainable) == (True, False)
    mine.apply_gradients([1], ONES[:1])
    assert yours.lookup([1]).tolist() == [[-0.5, -0.5]]
    with pytest.raises(ValueError, match="'table' is open with trainable=False, got trainable=True"):
        second.get_variable("table", trainable=True)


def halves(keys, count):
    return (keys >= 0).astype(np.int64)


def test_a_variable_of_another_client_is_got_with_what_it_has_and_with_nothing_else(two):
    """Other hot_rows, devices, creators, admissions and functions of a second client were ignored."""
    first, second = two
    mine = first.get_variable(
        "table", dim=2, devices=["cpu", "cpu"], partitioner=halves, hot_rows=64, constraint=np.abs, optimizer=SGD
    )
    yours = second.get_variable("table", hot_rows=64, partitioner=halves, constraint=np.abs)
    assert (yours.devices, yours.partitioner) == (mine.devices, halves)
    mine.upsert([-1, 1, 2], ONES)
    assert (yours.size(0), yours.size(1)) == (mine.size(0), mine.size(1)) == (1, 2)
    second.get_variable("other", dim=2)
    for given in (
        {"devices": "cpu"}, {"hot_rows": 128}, {"init_size": 64}, {"admission": kvemb.Admission(3)},
        {"partitioner": np.mod}, {"constraint": np.sign}, {"kv_creator": kvemb.RocksDBCreator(bloom_bits=5)},
    ):  # fmt: skip
        name = next(iter(given))
        with pytest.raises(ValueError, match=rf"'table' is open with {name}=.*, got {name}=.*; leave it out"):
            first.get_variable("table", **given)
        with pytest.raises(ValueError, match=rf"'table' is open with {name}=.*, got {name}=.*; leave it out"):
            second.get_variable("table", **given)
        if name != "devices":
            with pytest.raises(ValueError, match=rf"'other' is open with {name}=.*, got {name}=.*; leave it out"):
                first.get_variable("other", **given)


def test_a_variable_in_memory_is_open_to_all_clients(two):
    """The second client got UnsupportedFormat."""
    first, second = two
    mine = first.get_variable("table", dim=2, kv_creator=kvemb.MemoryCreator())
    mine.upsert([1, 2, 3], ONES)
    yours = second.variables["table"]
    assert yours.lookup([1, 4]).tolist() == [[1, 1], [0, 0]]
    assert second.get_variable("table", kv_creator=kvemb.MemoryCreator()) is yours
    assert not yours.persistent


def test_what_another_client_drops_is_gone_and_its_name_is_free(two):
    first, second = two
    mine = first.get_variable("table", dim=2)
    second.variables["table"].upsert([1, 2, 3], ONES)
    second.drop_variable("table")
    for call in (lambda: mine.lookup([1]), lambda: mine.upsert([1, 2, 3], ONES), mine.size, mine.clear):
        with pytest.raises(Closed, match="dropped"):
            call()
    made = second.get_variable("table", dim=1)
    with pytest.raises(Closed, match="dropped"):
        mine.upsert([1, 2, 3], ONES)
    assert made.size() == 0
    again = first.get_variable("table")
    assert again.dim == 1
    assert again is not mine
    assert first.variables["table"] is again


def test_a_call_by_name_never_reaches_the_next_variable_of_that_name_by_an_old_handle(two, monkeypatch):
    """The call that meets the drop raises an error with the name, and the next one uses the new variable."""
    first, second = two
    monkeypatch.setattr(inside(first).session, "exchange_if_due", lambda: None)  # it hears of no drop by itself
    first.get_variable("table", dim=2, optimizer=SGD)
    first.get_variable("other", dim=1)
    for call in (
        lambda: first.lookup({"other": [1], "table": [1]}),
        lambda: first.apply_gradients({"table": ([1], ONES[:1])}),
        lambda: first.prefetch({"table": [1]}),
    ):
        second.drop_variable("table")
        second.get_variable("table", dim=2, optimizer=SGD).upsert([1, 2, 3], ONES)
        with pytest.raises(Closed, match="dropped") as raised:
            call()
        assert "variable 'table'" in "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
        assert first.lookup({"table": [1]})["table"].tolist() == [[1, 1]]
    assert first.variables["table"] is first.get_variable("table")
    second.drop_variable("table")
    inside(first).session.exchange()
    for read in (lambda: first.variables["table"], lambda: first.lookup({"table": [1]})):
        with pytest.raises(KeyError, match="no variable 'table'"):
            read()
    for client in (first, second):
        client.recover()
    with pytest.raises(KeyError, match="no variable 'table'; there is other"):
        first.lookup({"table": [1]})


@pytest.mark.parametrize("given", [False, True])
def test_functions_and_policies_are_those_of_the_client_that_opened_the_variable(two, given):
    first, second = two

    def how():
        policy, constraint = Fading(), lambda rows: np.minimum(rows, 3)
        return {"restrict_policy": policy, "constraint": constraint, "optimizer": kvemb.optimizers.SGD(1.0)}

    mine = first.get_variable("table", dim=2, **how())
    yours = second.get_variable("table", **how()) if given else second.variables["table"]
    yours.apply_gradients([1, 2, 3], -9 * ONES)
    assert (mine.lookup([1, 2, 3]) == 3).all()
    assert mine.restrict_policy.status([1, 2, 3]).tolist() == yours.restrict_policy.status([1, 2, 3]).tolist()
    if given:
        assert yours.restrict(1) == 2
        assert mine.size() == 1
    else:
        with pytest.raises(ValueError, match=r"was opened without its policy .*Fading"):
            yours.restrict(1)


def test_uses_of_a_client_without_the_policy_count_as_those_of_one_store(two, store):
    first, second = two
    one = store.get_variable("table", dim=2, restrict_policy=Fading())
    mine = first.get_variable("table", dim=2, restrict_policy=Fading())
    yours, keys = second.variables["table"], np.arange(40)
    for table in (one, mine):
        table.upsert(keys, np.ones((40, 2), np.float32))
    for batch, touch in (([1, 2, 1, 1], True), ([2, 3, 50, 31, 50, 33], True), ([7] * 9, False), ([4, *keys], True)):
        one.lookup(batch, touch=touch)
        yours.lookup(batch, touch=touch)
        for client in (second, first):
            inside(client).session.exchange()
        one.lookup([5, 5])
        mine.lookup([5, 5])
        for client in (first, second):
            inside(client).session.exchange()
    assert mine.restrict_policy.status(keys).tolist() == one.restrict_policy.status(keys).tolist()
    assert inside(mine).storage.step == inside(one).storage.step == 7


def test_no_use_counts_while_no_client_has_given_the_policy(open_cluster, tmp_path):
    with open_cluster(2, url=tmp_path / "series") as cluster:
        table = cluster.get_variable("table", dim=2, restrict_policy=Fading())
        table.upsert([1, 2, 3], ONES)
        table.lookup([1, 2, 2])
        scores = table.restrict_policy.status([1, 2, 3]).tolist()
    table = open_cluster(2, url=tmp_path / "series").variables["table"]
    table.lookup([1, 1, 2])
    assert table.restrict_policy.status([1, 2, 3]).tolist() == scores
    assert inside(table).storage.step == 1


def test_clients_that_take_turns_are_one_store_bit_for_bit(two, connect):
    clients, keys, chance = [*two, connect()], np.arange(300), np.random.default_rng(4)
    twins = [twin_of(two[0], keys)]
    twins += [twin_of(client, keys, twins[0].model) for client in clients[1:]]
    for seed in range(25):
        turn = int(chance.integers(3))
        train(twins[turn], seed, 1)
        twins[turn].check_status(keys)
        for each in (turn, *range(3)):
            inside(clients[each]).session.exchange()
    for twin in twins:
        twin.check_export(50)


def test_clients_that_make_calls_hear_of_each_other_unasked(two):
    tables = [each.get_variable("table", dim=2) for each in two]
    for _ in range(3):
        for table in tables:
            table.lookup([1])
    time.sleep(EXCHANGE_SECONDS)
    for table in tables * 2:
        table.size()
    time.sleep(EXCHANGE_SECONDS)
    for table in tables:
        table.size()
    assert [inside(table).storage.step for table in tables] == [6, 6]


def test_futures_and_checkpoints_are_for_every_client(two, tmp_path):
    first, second = two
    table = second.get_variable("table", dim=2, optimizer=SGD)
    table.apply_gradients([1, 2, 3], ONES)
    assert second.checkpoint(keep=1).number == 1
    assert first.last_checkpoint == second.last_checkpoint == second.point == 1
    assert second.id == first.id == str(tmp_path / "series")
    assert not inside(first).shared, "its shards are in this process"


def test_a_client_that_ends_leaves_the_cluster_and_its_end_is_the_cluster_s(two, connect, tmp_path):
    first, second = two
    with second:
        kvemb.get_variable("table", dim=2).upsert([1, 2, 3], ONES)
    with pytest.raises(Closed):
        second.variables["table"]
    assert first.variables["table"].size() == 3
    third = connect()
    table = third.variables["table"]
    first.close()
    with pytest.raises(ShardLost, match="did not answer"):
        table.lookup([1])
    with pytest.raises(Closed, match="was closed by the process that opened it"):
        third.recover()
    with pytest.raises(BackendUnavailable, match=r"no cluster has opened .*series in this process within 0 s"):
        kvemb.cluster.connect(tmp_path / "series", transport="local", wait_seconds=0)


def test_who_connects_waits_for_who_opens(open_cluster, tmp_path):
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(kvemb.cluster.connect(tmp_path / "series", transport="local", wait_seconds=60))
    )
    waiting.start()
    open_cluster(1, url=tmp_path / "series")
    waiting.join()
    assert found[0].shards == 1
    found[0].close()
    for arguments, error in (({"wait_seconds": -1}, ValueError), ({"transport": "dask"}, ValueError)):
        with pytest.raises(error):
            kvemb.cluster.connect(tmp_path / "series", **{"transport": "local", **arguments})


def test_a_scan_that_is_given_up_ends_on_the_shards_with_the_next_call(cluster):
    table = cluster.get_variable("table", dim=2)
    table.upsert(np.arange(90), np.ones((90, 2), np.float32))
    shards = inside(cluster).session.calls.transport._shards
    batches = table.export_batches(5)
    next(batches)
    assert [len(shard._scans._scans) for shard in shards] == [1, 1, 1]
    del batches
    gc.collect()
    table.lookup([1])
    # Nobody waits for the shards' answers.
    wait_until(lambda: [len(shard._scans._scans) for shard in shards] == [0, 0, 0])


@pytest.mark.slow
def test_many_clients_lose_no_update(two, connect):
    first, _ = two
    first.get_variable("table", dim=1, optimizer=kvemb.optimizers.SGD(1.0))
    keys = np.arange(50)

    def train():
        with connect() as client:
            table = client.get_variable("table", optimizer=kvemb.optimizers.SGD(1.0))
            for step in range(20):
                table.apply_gradients(keys, np.full((50, 1), -1, np.float32))
                if step == 10:
                    client.checkpoint(keep=1)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (first.variables["table"].lookup(keys) == 80).all()
    assert first.stats_by_shard != [Stats()] * 3


def test_an_admission_of_another_client_counts_every_occurrence(two):
    first, second = two
    how = {"dim": 2, "optimizer": SGD, "initializer": 0.0}
    mine = first.get_variable("table", admission=kvemb.Admission(3), **how)
    second.get_variable("table", **how).apply_gradients([1, 2, 1, 1], np.ones((4, 2), np.float32))
    assert mine.lookup([1, 2]).tolist() == [[-1.5, -1.5], [0, 0]]
    mine.apply_gradients([1, 2, 2], ONES)
    assert mine.size() == 2
    first.checkpoint()
    for client in (first, second):
        client.recover()
    second.variables["table"].apply_gradients([3, 4, 3, 3], np.ones((4, 2), np.float32))
    assert mine.lookup([3, 4], True)[1].tolist() == [True, False]
