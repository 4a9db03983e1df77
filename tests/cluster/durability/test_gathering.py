"""A cluster's checkpoint as one of a single store: its rows, what changed since earlier ones, and replicas of it."""

from __future__ import annotations

import numpy as np
import pytest
from deltas import columns_of, told

import kvemb
import kvemb.cluster
from kvemb import bulk
from kvemb.durability.manifest import parse
from kvemb.errors import CheckpointNotFound, Corruption
from kvemb.handle import inside

HOW = {"memory_budget": "4MiB"}
ADAM = kvemb.optimizers.Adam(0.5)


def histories(store, save):
    """Train in some steps, with a checkpoint after each; rows are removed, variables cleared, dropped and made again.

    save(): returns where the checkpoint is.
    """
    chance, saved = np.random.default_rng(3), []
    users = store.get_variable("users", dim=3, optimizer=ADAM, restrict_policy=kvemb.FrequencyRestrictPolicy())
    items = store.get_variable("items", "int32", dim=2)
    store.get_variable("later/dropped", dim=1).upsert(np.arange(30), np.ones((30, 1), np.float32))
    for step in range(4):
        keys = chance.integers(-400, 400, 150)
        users.apply_gradients(keys, chance.standard_normal((150, 3)).astype(np.float32))
        users.lookup(keys[:40])
        users.remove(keys[:10])
        items.upsert(np.arange(step * 40, step * 40 + 60, dtype=np.int32), np.full((60, 2), step, np.float32))
        if step == 1:
            items.clear()
            items.upsert([7, 8], np.ones((2, 2), np.float32))
        if step == 2:
            store.drop_variable("later/dropped")
            store.drop_variable("items")
            items = store.get_variable("items", dim=1)
            items.upsert([-5, 5], np.ones((2, 1), np.float32))
            items = store.get_variable("more", dim=2)
        saved.append(save())
    return saved


def rows_of(place):
    with kvemb.open(place, read_only=True, **HOW) as store:
        return columns_of(store)


@pytest.fixture
def single(tmp_path):
    """The checkpoints of one store."""
    with kvemb.open(tmp_path / "single", **HOW) as store:
        series = kvemb.CheckpointManager(tmp_path / "ones")
        yield histories(store, lambda: series.save(store))
        series.close()


def pulled(url, root, *numbers):
    with kvemb.CheckpointManager(root) as series:
        return [series.pull(url, number=number) for number in numbers]


@pytest.mark.slow
def test_only_what_changed_is_transferred(open_cluster, tmp_path):
    url, keys = tmp_path / "series", np.arange(2000)
    with open_cluster(2, url=url) as cluster:
        table = cluster.get_variable("table", dim=8, optimizer=ADAM)
        for step in range(4):
            table.upsert(keys, np.full((len(keys), 8), step, np.float32))
            keys = np.arange(step, step + 20)
            table.remove([1500 + step])
            cluster.checkpoint(files={"dense": bytes(step + 1)})
        cluster.close(flush=False)
    pulled(url, tmp_path / "root", 1)
    for base in url.glob("shards/*/checkpoints/00000001.json"):
        for name, entry in parse(base.read_text(), "base").files.items():
            if name.endswith(".sst"):
                (base.parents[1] / "files" / entry.sha256[:2] / entry.sha256).unlink()
    told = []
    with kvemb.CheckpointManager(tmp_path / "root") as series:
        found = [series.pull(url, number=number, progress=lambda *count: told.append(count)) for number in (3, 4)]
    assert max(total for _, total in told) < 20_000, "bytes of a shard's delta and keys"
    with pytest.raises(Corruption, match="is missing"):
        pulled(url, tmp_path / "other", 4)
    for step, each in zip((2, 3), found, strict=True):
        assert kvemb.verify(each, deep=True)
        assert each.files["dense"].read_bytes() == bytes(step + 1)
        with kvemb.open(each, read_only=True, **HOW) as store:
            exists = store.variables["table"].lookup(np.arange(1500, 1506), return_exists=True)[1]
            assert exists.tolist() == [at > step for at in range(6)]
            assert store.variables["table"].lookup([step, 1000]).mean(axis=1).tolist() == [step, 0]
    assert sum(len(part.keys) for part in found[1].changes(found[0])) == 20
    with kvemb.CheckpointManager(tmp_path / "root") as series:  # pushed on, they are a base and deltas as any other's
        sent = [series.push(tmp_path / "elsewhere", number=number) for number in (1, 3, 4)]
    assert [each.deltas for each in sent] == [0, 1, 2]
    assert rows_of(pulled(tmp_path / "elsewhere", tmp_path / "copy", 4)[0]) == rows_of(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("shards", [pytest.param(3, marks=pytest.mark.slow), 1])
def test_rows_and_changes_are_those_of_one_store(open_cluster, tmp_path, single, shards):
    with open_cluster(shards, url=tmp_path / "series") as cluster:
        numbers = histories(cluster, lambda: cluster.checkpoint().number)
        numbers.append(cluster.checkpoint().number)
    parts = pulled(tmp_path / "series", tmp_path / "root", *numbers)
    (apart,) = pulled(tmp_path / "series", tmp_path / "apart", numbers[-2])
    assert rows_of(apart) == rows_of(single[-1]), "of whole checkpoints, not of deltas"
    for one, of_cluster in zip(single, parts[:-1], strict=True):
        assert rows_of(of_cluster) == rows_of(one)
        assert kvemb.verify(of_cluster, deep=True)
    for begin, end in [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)]:
        for name in {*single[begin].variables, *single[end].variables}:
            expected = told(single[end], single[begin], name)
            assert told(parts[end], parts[begin], name) == expected, (begin, end, name)
    assert all(not list(parts[4].changes(parts[3])) for _ in range(1)), "nothing changed"
    assert [each.id for each in parts] == [kvemb.cluster.latest(tmp_path / "series", number=n)[1].id for n in numbers]
    assert parts[2].parent == parts[1].id


@pytest.mark.slow
def test_a_replica_is_brought_from_one_to_the_next(open_cluster, tmp_path, single):
    with open_cluster(3, url=tmp_path / "series") as cluster:
        histories(cluster, cluster.checkpoint)
    with kvemb.restore(tmp_path / "series" / "00000001", tmp_path / "replica", **HOW) as replica:
        for number in (2, 4):  # no series here knows what the replica has: the shards know what changed since
            (taken,) = pulled(tmp_path / "series", tmp_path / f"root-{number}", number)
            replica.apply_delta(taken)
            assert columns_of(replica) == rows_of(single[number - 1])
    with kvemb.restore(tmp_path / "series" / "00000001", tmp_path / "some", variables=["users"], **HOW) as some:
        some.apply_delta(taken)
        assert list(some.variables) == ["more", "users"], "what it was restored without stays out"


@pytest.mark.slow
def test_tables_are_compared_if_the_shards_do_not_know_what_changed(open_cluster, tmp_path):
    url = tmp_path / "series"
    for step, shards in enumerate((2, 3, 3, 1)):
        cluster, chance = open_cluster(shards, url=url), np.random.default_rng(step)
        users = cluster.get_variable("users", dim=3, optimizer=ADAM)
        users.apply_gradients(chance.integers(0, 300, 90), chance.standard_normal((90, 3)).astype(np.float32))
        users.remove(chance.integers(0, 300, 9))
        if step == 1:
            cluster.get_variable("items", dim=1).upsert([1, 2], np.ones((2, 1), np.float32))
        if step == 2:
            cluster.drop_variable("items")
            cluster.get_variable("items", dim=2).upsert([2, 3], np.ones((2, 2), np.float32))
        cluster.checkpoint()
        cluster.close(flush=False)
    parts = pulled(url, tmp_path / "root", 1, 2, 3, 4)
    for begin, end in [(0, 1), (1, 2), (2, 3), (0, 3)]:
        for name in parts[end].variables:
            rows, removed = told(parts[end], parts[begin], name)
            assert (rows, removed) == by_hand(parts[begin], parts[end], name)
    with kvemb.restore(parts[0], tmp_path / "replica", **HOW) as replica:
        replica.apply_delta(parts[3])
        assert columns_of(replica) == rows_of(parts[3])
    (apart,) = pulled(url, tmp_path / "apart", 4)
    assert rows_of(apart) == rows_of(parts[3])
    with pytest.raises(CheckpointNotFound, match="does not record what changed"):
        list(apart.changes(parts[2]))


def by_hand(before, after, name):
    """The rows of a variable that differ, and the keys that were removed, in the form of told()."""

    def rows(checkpoint):
        if name not in checkpoint.variables:
            return {}
        with kvemb.open(checkpoint, read_only=True, **HOW) as store:
            found, slots = next(bulk.scan(store.variables[name])), []
            slots = list(found.slots.values())
            return {
                key: (
                    (found.values[at].tobytes(), *(slot[at].tobytes() for slot in slots), found.scores[at].tobytes()),
                    int(found.steps[at]),
                )
                for at, key in enumerate(found.keys.tolist())
            }

    old, new = rows(before), rows(after)
    return {key: new[key][0] for key in new if old.get(key) != new[key]}, sorted(set(old) - set(new))


def test_what_is_beside_the_rows_and_what_was_hot_come_along(open_cluster, tmp_path):
    with open_cluster(3, url=tmp_path / "series") as cluster:
        table = cluster.get_variable("table", dim=2)
        table.upsert(np.arange(50), np.ones((50, 2), np.float32))
        cluster.checkpoint(files={"model.pt": b"dense", "same": b"dense"}, extra={"step": 7})
        cluster.close(flush=False)
    (found,) = pulled(tmp_path / "series", tmp_path / "root", 1)
    assert {name: path.read_bytes() for name, path in found.files.items()} == {"model.pt": b"dense", "same": b"dense"}
    assert found.extra == {"step": 7}
    with kvemb.restore(found, tmp_path / "store", warm=True, **HOW) as store:
        store.variables["table"].lookup(np.arange(50), touch=False)
        assert store.stats.hits == 50


def test_missing_rows_are_told(open_cluster, tmp_path, monkeypatch):
    with open_cluster(2, url=tmp_path / "series") as cluster:
        cluster.get_variable("table", dim=1).upsert(np.arange(9), np.ones((9, 1), np.float32))
    from kvemb.cluster.durability import gathering

    actual = gathering.merged
    monkeypatch.setattr(gathering, "merged", lambda streams, *how: actual(streams[:1], *how))
    with pytest.raises(Corruption, match=r"has \d rows of 'table' and should have 9"):
        pulled(tmp_path / "series", tmp_path / "root", 1)
    assert not [path for path in (tmp_path / "root").iterdir() if path.name[0] not in ".L"]


def test_an_interrupted_pull_goes_on_and_damage_is_named(open_cluster, tmp_path, monkeypatch):
    with open_cluster(2, url=tmp_path / "series") as cluster:
        cluster.get_variable("table", dim=1).upsert(np.arange(900), np.ones((900, 1), np.float32))
    (_, second) = kvemb.cluster.latest(tmp_path / "series")[1].shards
    files = sorted(
        (tmp_path / "series" / "shards" / second.store / "files").glob("*/*"), key=lambda each: each.stat().st_size
    )
    whole = files[-1].read_bytes()
    files[-1].write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Corruption, match=f"{files[-1].name}.* is damaged"):
        pulled(tmp_path / "series", tmp_path / "root", 1)
    files[-1].unlink()
    with pytest.raises(Corruption, match=f"{files[-1].name}.* is missing"):
        pulled(tmp_path / "series", tmp_path / "root", 1)
    assert len(list((tmp_path / "root" / ".pulled").glob("*/00000001"))) == 1, "the first shard is here"
    files[-1].write_bytes(whole)
    (found,) = pulled(tmp_path / "series", tmp_path / "root", 1)
    assert found.variables["table"].rows == 900
    assert not (tmp_path / "root" / ".pulled").exists()
    assert inside(found).store == kvemb.cluster.latest(tmp_path / "series")[1].store
