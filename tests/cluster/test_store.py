"""A cluster as users see it: variables, calls on many of them, collections, futures, errors, its end."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from waiting import wait_until

import kvemb
import kvemb.cluster
from kvemb.cluster.coordination.coordinator import Coordinator
from kvemb.errors import Closed, Corruption, SchemaMismatch
from kvemb.handle import inside
from kvemb.stats import Stats

SGD = kvemb.optimizers.SGD(0.5)
ONES = np.ones((3, 2), np.float32)


def test_a_variable_is_the_same_object_for_its_name(cluster):
    table = cluster.get_variable("table", dim=2, optimizer=SGD)
    assert cluster.get_variable("table") is table is cluster.variables["table"]
    assert list(cluster.variables) == ["table"]
    with pytest.raises(SchemaMismatch, match="dim=2, got dim=3"):
        cluster.get_variable("table", dim=3)
    with pytest.raises(KeyError, match="there is no variable 'other'; there is table"):
        cluster.variables["other"]


def test_what_one_shard_refuses_none_keeps(cluster):
    with pytest.raises(ValueError, match="budget"):
        cluster.get_variable("table", dim=2, hot_rows=10**9)
    table = cluster.get_variable("table", dim=3)
    assert table.dim == 3
    assert table.size() == 0


def test_another_learning_rate_counts_on_every_shard(cluster):
    table = cluster.get_variable("table", dim=2, optimizer=SGD)
    table.optimizer = kvemb.optimizers.SGD(2.0)
    table.apply_gradients([1, 2, 3], ONES)
    assert (table.lookup([1, 2, 3]) == -2).all()
    cluster.get_variable("table", optimizer=kvemb.optimizers.SGD(1.0))
    table.apply_gradients([1, 2, 3], ONES)
    assert (table.lookup([1, 2, 3]) == -3).all()
    with pytest.raises(SchemaMismatch, match="optimizer"):
        table.optimizer = kvemb.optimizers.Adagrad()


class TestBounds:
    def test_each_shard_keeps_its_part(self, cluster):
        table = cluster.get_variable("table", dim=2, max_rows=90)
        table.upsert(np.arange(3000), np.ones((3000, 2)))
        wait_until(lambda: table.size() <= 96)
        assert table.size() >= 90 - cluster.shards
        cluster.get_variable("table", max_rows=60)
        wait_until(lambda: table.size() <= 64)
        assert table.max_rows == 60
        table.max_rows = None
        table.upsert(np.arange(500), np.ones((500, 2)))
        assert table.max_rows is None
        assert table.restrict_policy is None

    def test_it_is_stored_and_other_clients_have_it(self, open_cluster, tmp_path):
        with open_cluster(2, url=tmp_path / "series") as cluster:
            cluster.get_variable("table", dim=2, max_rows=50)
            with kvemb.cluster.connect(tmp_path / "series", transport="local") as client:
                assert client.variables["table"].max_rows == 50
                client.variables["table"].max_rows = 40
            cluster.checkpoint()
        with open_cluster(3, url=tmp_path / "series") as cluster:
            table = cluster.variables["table"]
            assert table.max_rows == 40
            table.upsert(np.arange(3000), np.ones((3000, 2)))
            wait_until(lambda: table.size() <= 42)
            cluster.checkpoint()
        with kvemb.restore(tmp_path / "series", tmp_path / "one", memory_budget="4MiB") as store:
            assert store.variables["table"].max_rows == 40

    def test_a_time_to_live_is_refused(self, cluster):
        told = "a cluster has no ttl, got 5: the steps of its rows are counted by its clients; leave it out, and call"
        with pytest.raises(ValueError, match=told):
            cluster.get_variable("table", dim=2, ttl=5)
        table = cluster.get_variable("table", dim=2)
        with pytest.raises(ValueError, match=told):
            cluster.get_variable("table", ttl=5)
        with pytest.raises(ValueError, match=told):
            table.ttl = 5


def test_a_dropped_variable_is_gone_and_its_name_is_free(cluster):
    table = cluster.get_variable("table", dim=2)
    table.upsert([1, 2, 3], ONES)
    cluster.drop_variable("table")
    with pytest.raises(Closed, match="dropped"):
        table.lookup([1])
    assert table.stats.rows == 3
    assert "closed" in repr(table)
    assert cluster.get_collection(kvemb.GraphKeys.GLOBAL_VARIABLES) == []
    assert not cluster.get_variable("table", dim=1).lookup([1], return_exists=True)[1].any()
    with pytest.raises(KeyError, match="no variable 'none'"):
        cluster.drop_variable("none")


def test_a_call_that_began_before_a_drop_does_not_reach_the_next_variable_of_that_name(cluster):
    table = cluster.get_variable("table", dim=2, restrict_policy=kvemb.TimestampRestrictPolicy())
    operations, keys = inside(table).operations, np.arange(3)
    cluster.drop_variable("table")
    cluster.get_variable("table", dim=2, restrict_policy=kvemb.TimestampRestrictPolicy()).upsert([1, 2, 3], ONES)
    for method, arguments in [
        ("upsert", (keys, ONES)),
        ("remove", (keys,)),
        ("use", (keys,)),
        ("clear", ()),
        ("restrict", (0, None)),
        ("scores", (keys,)),
        ("set_optimizer", (SGD,)),
    ]:
        with pytest.raises(Closed, match="dropped"):
            getattr(operations, method)(*arguments)
    assert (cluster.variables["table"].lookup([1, 2, 3]) == 1).all()


def test_collections_regularizers_and_scopes_are_those_of_a_store(cluster):
    with cluster.as_default(), kvemb.variable_scope("towers"):
        users = kvemb.get_variable("users", dim=2, regularizer=lambda variable: variable.name)
        with pytest.raises(ValueError, match="exists already"):
            kvemb.get_variable("users", dim=2)
    assert isinstance(users, kvemb.cluster.Variable)
    assert users.name == "towers/users"
    assert isinstance(users.initializer, kvemb.GlorotUniform)
    assert cluster.get_collection(kvemb.GraphKeys.REGULARIZATION_LOSSES) == ["towers/users"]
    assert kvemb.get_collection(kvemb.GraphKeys.TRAINABLE_VARIABLES, store=cluster) == [users]
    with pytest.raises(TypeError, match="call its get_variable"):
        kvemb.Variable(name="other", store=cluster)


def test_calls_on_many_variables_check_everything_first(cluster):
    users, items = (cluster.get_variable(name, dim=2, optimizer=SGD) for name in ("users", "items"))
    cluster.apply_gradients({users: ([1, 1, 2], ONES), "items": ([4], ONES[:1])})
    rows = cluster.lookup({"items": [[4]], users: [1, 2, 3]})
    assert rows["items"].tolist() == [[[-0.5, -0.5]]]
    assert rows[users].tolist() == [[-1, -1], [-0.5, -0.5], [0, 0]]
    cluster.prefetch({users: [1, 2]})
    with pytest.raises(ValueError, match="variable 'items': grads must have shape"):
        cluster.apply_gradients({users: ([1], ONES[:1]), items: ([4], ONES)})
    with pytest.raises(ValueError, match="given twice"):
        cluster.lookup({users: [1], "users": [2]})
    with pytest.raises(KeyError, match="no variable 'none'"):
        cluster.lookup({"none": [1]})
    assert users.lookup([1]).tolist() == [[-1, -1]]


def test_calls_by_name_ask_the_coordinator_about_no_variable_that_is_open(cluster, monkeypatch):
    tables = [cluster.get_variable(name, dim=2, optimizer=SGD) for name in ("users", "items")]
    asked, call = [], Coordinator.call
    monkeypatch.setattr(Coordinator, "call", lambda self, name, given: asked.append(name) or call(self, name, given))
    for _ in range(3):
        cluster.apply_gradients({"users": ([1], ONES[:1]), "items": ([2], ONES[:1])})
        cluster.prefetch({"users": [1], "items": [2]})
        rows = cluster.lookup({"users": [1], "items": [2]})
    assert set(asked) <= {"exchange"}
    assert [rows["users"].tolist(), rows["items"].tolist()] == [[[-1.5, -1.5]]] * 2
    with pytest.raises(KeyError, match="there is no variable 'none'; there are items, users"):
        cluster.apply_gradients({"users": ([1], ONES[:1]), "none": ([1], ONES[:1])})
    cluster.drop_variable("items")
    with pytest.raises(KeyError, match="there is no variable 'items'; there is users"):
        cluster.lookup({"users": [1], "items": [2]})
    assert tables[0].lookup([1]).tolist() == [[-1.5, -1.5]]
    cluster.close()
    with pytest.raises(Closed):
        cluster.lookup({"users": []})


def test_a_variable_of_one_place_is_refused_by_another(cluster, store):
    mine, other = cluster.get_variable("mine", dim=2), store.get_variable("other", dim=2)
    for place, strange in ((cluster, other), (store, mine)):
        with pytest.raises(ValueError, match="belongs to another store"):
            place.lookup({strange: [1]})


def test_futures_give_what_the_calls_give(cluster):
    table = cluster.get_variable("table", dim=2, optimizer=SGD)
    table.apply_gradients([1, 2, 3], ONES)
    cluster.apply_gradients({table: ([1], ONES[:1])})
    rows, there = table.lookup_async([1, 9], return_exists=True).result()
    assert rows.tolist() == [[-1, -1], [0, 0]]
    assert there.tolist() == [True, False]
    assert cluster.lookup_async({"table": [2]}, touch=False).result()["table"].tolist() == [[-0.5, -0.5]]
    with pytest.raises(TypeError, match="keys must be int64"):
        table.lookup_async([0.5]).result()


def test_counts_are_those_of_all_shards(cluster):
    assert cluster.stats_by_shard == [Stats()] * 3
    table = cluster.get_variable("table", dim=2)
    table.upsert(np.arange(100), np.ones((100, 2), np.float32))
    by_shard = cluster.stats_by_shard
    assert [stats.rows for stats in by_shard] == [stats.rows for stats in table.stats_by_shard]
    assert min(stats.rows for stats in by_shard) > 10
    assert sum(stats.rows for stats in by_shard) == cluster.stats.rows == table.stats.rows == 100


def test_a_variable_that_another_client_dropped_is_named_and_not_counted(open_cluster, tmp_path):
    cluster = open_cluster(2, url=tmp_path / "series")
    table, kept = cluster.get_variable("table", dim=2), cluster.get_variable("kept", dim=2)
    table.upsert([1, 2, 3], ONES)
    kept.upsert([1], ONES[:1])
    with kvemb.cluster.connect(tmp_path / "series", transport="local") as other:
        other.drop_variable("table")
        other.get_variable("table", dim=3)
        assert cluster.stats.rows == 1
        assert sum(stats.rows for stats in cluster.stats_by_shard) == 1
        assert repr(table) == "<kvemb.Variable 'table', dropped by another client>"
        assert repr(table) in repr(cluster)
    with pytest.raises(Closed):
        _ = table.stats


def test_what_it_is_can_be_read(cluster):
    cluster.get_variable("table", dim=2)
    first, line = repr(cluster).splitlines()
    assert first == f"<kvemb.cluster.Store {cluster.path} open, 3 shards>"
    assert line.startswith("  <kvemb.Variable 'table' int64 -> 2 x float32, 0 rows")


def test_it_is_not_copied_and_not_pickled(cluster):
    table = cluster.get_variable("table", dim=2)
    assert copy.deepcopy(cluster) is cluster
    assert copy.copy(table) is table
    for each in (cluster, table):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(each)


def test_a_closed_cluster_refuses_every_call_and_keeps_its_counts(open_cluster):
    with open_cluster(2) as cluster:
        table = kvemb.get_variable("table", dim=2)
        table.upsert([1, 2, 3], ONES)
        batches = table.export_batches(1)
    cluster.close()
    assert cluster.stats.rows == table.stats.rows == 3
    assert "closed" in repr(cluster)
    assert "closed" in repr(table)
    for call in (
        lambda: table.lookup([1]), lambda: table.upsert([1, 2, 3], ONES), table.size, table.clear,
        lambda: cluster.lookup({table: [1]}), lambda: cluster.get_variable("table"), lambda: next(batches),
        lambda: cluster.lookup_async({table: [1]}), lambda: cluster.variables["table"], lambda: table.lookup_async([1]),
    ):  # fmt: skip
        with pytest.raises(Closed):
            call()


def test_a_series_of_a_single_store_says_where_a_cluster_saves(cluster, tmp_path):
    with pytest.raises(TypeError, match=r"a kvemb\.Store, got <kvemb\.cluster.* own url: call its checkpoint\(keep=\)"):
        kvemb.CheckpointManager(tmp_path / "one").save(cluster)
    assert not (tmp_path / "one").exists()


def test_check_names_what_is_wrong(open_cluster, tmp_path):
    cluster = open_cluster(2)
    table = cluster.get_variable("table", dim=2)
    table.upsert([1, 2, 3], ONES)
    cluster.check(deep=True)
    (damaged, *_) = sorted((tmp_path / "scratch").glob("*/shard-0001/store/points/*/manifest.json"))
    text = damaged.read_bytes()
    damaged.write_bytes(text.replace(b"table", b"tabel") if b"table" in text else text[:-5])
    with pytest.raises(Corruption, match="shard-0001"):
        cluster.check()
    damaged.write_bytes(text)


@pytest.mark.parametrize("owner", [True, False])
@pytest.mark.parametrize("begin", ["lookup_async", "checkpoint"])
def test_what_close_overtakes_as_it_begins_raises_closed(open_cluster, tmp_path, monkeypatch, begin, owner):
    """It raised RuntimeError: the threads that were to do it, or to wait for it, had ended."""
    cluster = open_cluster(2, url=tmp_path / "series")
    table = cluster.get_variable("table", dim=2)
    table.upsert([1, 2, 3], ONES)
    client = cluster if owner else kvemb.cluster.connect(tmp_path / "series", transport="local")
    table, threads = client.variables["table"], inside(client)
    pool = threads._started if begin == "lookup_async" else threads._waiting
    submit = pool.submit

    def overtaken(*given):
        client.close()
        return submit(*given)

    monkeypatch.setattr(pool, "submit", overtaken)
    with pytest.raises(Closed):
        table.lookup_async([1]) if begin == "lookup_async" else client.checkpoint(block=False)
    assert client.state.closed
