"""Series of checkpoints: their numbers, one writer, and directories that are not series."""

from __future__ import annotations

import pytest
from versions import fill, make, rows_of

import kvemb
import kvemb.cluster
from kvemb.errors import Corruption, Locked, TransferError

fsspec = pytest.importorskip("fsspec")


def test_checkpoints_are_numbered_and_the_newest_is_the_latest(store, manager):
    assert (manager.latest(), manager.list(), repr(manager)) == (
        None,
        [],
        f"<kvemb.CheckpointManager {manager.root}: no checkpoint yet>",
    )
    for version in range(3):
        fill(store, version, [version])
        assert manager.save(store).path == manager.path(version + 1)
    assert manager.numbers() == [1, 2, 3]
    assert [checkpoint.path.name for checkpoint in manager.list()] == ["00000001", "00000002", "00000003"]
    assert manager.latest().id == manager.list()[-1].id
    assert rows_of(manager.latest()) == {0: 0.0, 1: 1.0, 2: 2.0}
    assert "3 checkpoints, the newest 00000003" in repr(manager)


def test_one_process_writes_and_others_read(store, manager, tmp_path):
    fill(store, 1)
    manager.save(store)
    other = kvemb.CheckpointManager(manager.root)
    assert other.latest().id == manager.latest().id
    with pytest.raises(Locked, match=f"the series {manager.root} is written to already, by this process"):
        other.save(store)
    other.push(str(tmp_path / "elsewhere"))
    with pytest.raises(Locked, match="close it there"):
        other.pull(str(tmp_path / "elsewhere"))
    manager.close()
    assert other.save(store).path == manager.path(2)
    other.close()
    manager.close()


def test_what_a_crash_left_goes_and_is_never_listed(store, manager):
    for name in (".00000003.123-1.tmp", ".00000001.dropped", ".ssh", ".git", "1"):
        (manager.root / name / "rows").mkdir(parents=True)
    store.checkpoint(manager.root / "7")  # a user's own name, which is no number of the series
    (manager.root / "00000007" / "rows").mkdir(parents=True)  # not complete: it has no manifest
    (manager.root / "notes.txt").touch()
    assert manager.numbers() == []
    fill(store, 1)
    assert manager.save(store).path.name == "00000001"
    assert sorted(path.name for path in manager.root.iterdir()) == [
        *(".git", ".ssh", "00000001", "00000007", "1", "7", "LOCK", "notes.txt"),
    ]


def test_a_store_or_a_checkpoint_is_no_place_for_a_series(open_store, manager, tmp_path):
    store = open_store(tmp_path / "store")
    (checkpoint,) = make(store, manager, 1)
    url = str(tmp_path / "remote")
    manager.push(url)
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    for root, told in (
        (tmp_path / "store", "is a store, not a series of checkpoints; name another directory"),
        (checkpoint.path, "is a checkpoint, not a series of checkpoints; name another directory"),
        (tmp_path / "file", "is a file, not a series of checkpoints; name a directory"),
        (tmp_path / "store" / "points", "is inside the store"),
        (tmp_path / "store" / "new", "is inside the store"),
        (checkpoint.path / "rows", "is inside the checkpoint"),
        (checkpoint.path / "new", "is inside the checkpoint"),
    ):
        wrong = kvemb.CheckpointManager(root)
        for call in (
            lambda wrong=wrong: wrong.pull(url),
            lambda wrong=wrong: wrong.save(store),
            lambda wrong=wrong: wrong.push(url),
        ):
            with pytest.raises((FileExistsError, ValueError), match=told):
                call()
        if "inside the checkpoint" not in told:
            with pytest.raises((FileExistsError, ValueError, TransferError), match=r"is a |is inside|exists|directory"):
                manager.push(root)
    assert sorted(tmp_path.rglob("*")) == before


# Two stores that meet one series.


def other_series(open_store, tmp_path, count):
    """A store that has nothing to do with the others, and its series."""
    other = open_store(tmp_path / "unrelated")
    manager = kvemb.CheckpointManager(tmp_path / "series of the unrelated")
    make(other, manager, count)
    manager.close()
    return other, manager


def test_another_store_pushes_nowhere_and_deletes_nothing(open_store, store, manager, tmp_path, place):
    url, options = place
    mine = make(store, manager, 3)
    for number in (1, 2, 3):
        manager.push(url, number=number, options=options)
    other, others = other_series(open_store, tmp_path, 6)
    told = rf"00000003 at .*, the newest checkpoint of the series, is of the store .*{store.id}, and .* {other.id}"
    with pytest.raises(FileExistsError, match=told):
        others.push(url, keep=1, options=options)
    with pytest.raises(FileExistsError, match="take the series over with take_over=True"):
        others.push(url, number=2, options=options)
    assert manager.remote_numbers(url, options=options) == [1, 2, 3]
    assert manager.push(url, keep=2, options=options).number == 3, "its own store goes on"
    assert manager.remote_numbers(url, options=options) == [2, 3]
    # Who says so may, and still deletes nothing but its own.
    others.push(url, number=5, keep=1, take_over=True, options=options)
    others.push(url, keep=1, options=options)
    assert manager.remote_numbers(url, options=options) == [2, 3, 6]
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        for number in (2, 3):
            found = copy.pull(url, number=number, options=options)
            assert rows_of(found) == rows_of(mine[number - 1])
        with pytest.raises(FileExistsError, match=f"00000006 at .* {other.id}: name another place"):
            copy.pull(url, options=options)
        assert copy.numbers() == [2, 3]
        assert copy.pull(url, take_over=True, options=options).path == copy.path(6)
    # The series is the other's now: the store that it was is told, too.
    make(store, manager, 4)
    with pytest.raises(FileExistsError, match=r"00000006 at .*, the newest checkpoint of the series"):
        manager.push(url, keep=1, options=options)
    assert manager.remote_numbers(url, options=options) == [2, 3, 6]


def test_another_store_saves_nowhere_and_deletes_nothing(open_store, store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", keep=2) as manager:
        make(store, manager, 3)
        other = open_store(tmp_path / "unrelated")
        fill(other, 9, [1])
        told = rf"00000003, the newest checkpoint of the series, is of the store .*{store.id}, and .*unrelated"
        for save in (manager.save, lambda other: manager.save(other, block=False)):
            with pytest.raises(FileExistsError, match=told):
                save(other)
        assert manager.numbers() == [2, 3]
        for _ in range(3):
            manager.save(other, take_over=True)
        assert manager.numbers() == [2, 3, 5, 6]
        manager.save(other)
        assert manager.numbers() == [2, 3, 6, 7], "it was told once"
        with pytest.raises(FileExistsError, match="00000007, the newest checkpoint of the series"):
            manager.save(store)
        manager.save(store, take_over=True, block=False).result()
        assert manager.numbers() == [3, 6, 7, 8]


def test_a_store_restored_from_a_series_goes_on_with_it(open_store, store, manager, tmp_path):
    make(store, manager, 2)
    url = str(tmp_path / "remote")
    manager.push(url, number=1)
    with kvemb.restore(url, tmp_path / "restored", memory_budget="4MiB") as restored:
        assert restored.id == store.id
        fill(restored, 5)
        assert manager.save(restored).path == manager.path(3)
    assert manager.push(url, keep=1).number == 3
    assert manager.remote_numbers(url) == [3]


def test_a_damaged_checkpoint_is_nobodys_and_stays(open_store, store, tmp_path):
    url = tmp_path / "remote"
    with kvemb.CheckpointManager(tmp_path / "series", keep=1) as manager:
        make(store, manager, 1)
        manager.push(url)
        (manager.path(1) / "manifest.json").write_text("{}")
        (url / "checkpoints" / "00000001.json").write_text("{}")
    with kvemb.CheckpointManager(tmp_path / "series", keep=1) as manager:
        make(store, manager, 2)
        assert manager.numbers() == [1, 3]
        with pytest.raises(Corruption, match=r"00000001\.json is damaged"):
            manager.push(url, keep=1)
        assert manager.remote_numbers(url) == [1, 3]


@pytest.mark.slow
def test_a_cluster_and_a_store_share_no_series(store, manager, tmp_path):
    make(store, manager, 1)
    manager.push(tmp_path / "pushed")
    with kvemb.cluster.open(tmp_path / "cluster", shards=2, transport="local", memory_budget="8MiB") as cluster:
        cluster.get_variable("table", dim=3).upsert([1], [[1, 1, 1]])
        cluster.checkpoint(), cluster.checkpoint()
    for place in (manager.root, tmp_path / "pushed"):
        with pytest.raises(FileExistsError, match="a single store's checkpoints; name another"):
            kvemb.cluster.open(place, shards=2, transport="local", memory_budget="8MiB")
    with pytest.raises(FileExistsError, match="has a cluster's checkpoints, which only the cluster writes"):
        manager.push(tmp_path / "cluster")
    with pytest.raises(FileExistsError, match="the newest checkpoint of the series"):
        manager.pull(tmp_path / "cluster", number=2)
    with kvemb.CheckpointManager(tmp_path / "of the cluster") as pulled:
        assert rows_of(pulled.pull(tmp_path / "cluster")) == {1: 1.0}
