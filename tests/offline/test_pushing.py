"""Checkpoints pushed as deltas: what is pulled is the same table, bit for bit, whatever was pushed and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pushed import DIM, ROWS, chain_of, contents, fill, pulled
from quick import quick

import kvemb
from kvemb.errors import CheckpointNotFound, Corruption
from kvemb.offline.transfer import Remote

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


def test_deltas_travel_to_every_place(store, manager, place, tmp_path):
    url, options = place
    fill(store, np.arange(ROWS), 0)
    for version in range(1, 4):
        manager.save(store, files={"model.pt": b"dense %d" % version, "same": b"same"}, extra={"step": version})
        assert manager.push(url, options=options).deltas == version - 1
        fill(store, np.arange(version), version)
    assert kvemb.verify(url, options=options, deep=True).findings == []
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        for number in (3, 2):
            found = copy.pull(url, number=number, options=options)
            assert contents(found) == contents(kvemb.Checkpoint(manager.path(number)))
            assert (found.files["model.pt"].read_bytes(), found.extra) == (b"dense %d" % number, {"step": number})


def test_a_pulled_checkpoint_is_the_one_that_was_pushed_to_everybody(store, manager, url, tmp_path, open_store):
    """It restores, brings replicas along, continues its series, and pushes as the number that it is."""
    fill(store, np.arange(ROWS), 0)
    manager.save(store)
    manager.push(url)
    fill(store, np.arange(100), 1)
    made = manager.save(store)
    manager.push(url)
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        first, second = copy.pull(url, number=1), copy.pull(url)
        assert (second.id, second.parent) == (made.id, made.parent)
        assert sum(len(change.keys) for change in second.changes(first)) == 100
        replica = kvemb.restore(first, tmp_path / "replica", memory_budget="4MiB")
        replica.apply_delta(second)
        assert replica.variables["table"].lookup(np.arange(101))[:, 0].tolist() == [1.0] * 100 + [0.0]
        replica.close()
        again = copy.push(url)
        assert (again.files, again.deltas) == (0, 1)
        restored = kvemb.restore(second, tmp_path / "restored", memory_budget="4MiB")
        fill(restored, np.arange(5), 3)
        third = copy.save(restored)
        restored.close()
        assert copy.push(url).deltas == 2
        # To another place the copy goes whole.
        elsewhere = f"{url}-elsewhere"
        assert copy.push(elsewhere, number=2).deltas == 0
        assert copy.push(elsewhere, number=3).deltas == 1
        assert contents(pulled(elsewhere, tmp_path / "other", 3)) == contents(third)
    assert contents(pulled(url, tmp_path / "third", 3)) == contents(third)


@pytest.mark.slow
def test_what_is_sent_is_what_changed_and_a_base_when_the_deltas_outgrow_it(store, manager, url):
    fill(store, np.arange(ROWS), 0)
    manager.save(store)
    base = manager.push(url).nbytes
    sent, bases = 0, 0
    chance = np.random.default_rng(1)
    for version in range(1, 25):
        fill(store, chance.choice(ROWS, 300, replace=False), version)
        manager.save(store)
        done = manager.push(url)
        sent += done.nbytes
        bases += done.deltas == 0
    record = 8 + 17 + 8 * DIM
    assert bases >= 1
    assert sent < 2.5 * 24 * 300 * record + base
    # And by the number of deltas.
    remote, deltas = Remote(url), []
    remote.max_deltas = 2
    for version in range(5):
        fill(store, [version], version)
        manager.save(store)
        deltas.append(remote.push(manager.latest(), manager.numbers()[-1]).deltas)
    assert max(deltas) <= 2
    assert deltas.count(0) >= 1


def test_the_whole_is_sent_where_changes_are_not_known_or_it_is_asked_for(store, open_store, manager, url, tmp_path):
    fill(store, np.arange(ROWS), 0)
    manager.save(store)
    manager.push(url)
    fill(store, [1], 1)
    manager.save(store)
    assert manager.push(url, whole=True).deltas == 0
    assert manager.push(url).files == 0
    fill(store, [2], 2)
    manager.save(store)
    assert manager.push(url).deltas == 1
    assert manager.push(url, whole=True).deltas == 0
    assert manager.push(url).deltas == 0
    # Another store's checkpoint follows none that is there.
    other = open_store(tmp_path / "other")
    fill(other, np.arange(ROWS), 5)
    manager.save(other, take_over=True)
    assert manager.push(url, take_over=True).deltas == 0
    # A variable that a restore left out and that was made again is not what it was.
    fill(other, [1], 5, "more")
    manager.save(other)
    assert manager.push(url).deltas == 1
    with kvemb.restore(manager.latest(), tmp_path / "part", variables=["more"], memory_budget="4MiB") as part:
        fill(part, [1], 6, "more")
        without = manager.save(part)
        assert manager.push(url).deltas == 2
        assert contents(pulled(url, tmp_path / "without", 6)) == contents(without)
        fill(part, [7], 7, "table")
        again = manager.save(part)
        assert manager.push(url).deltas == 0
        assert contents(pulled(url, tmp_path / "again", 7)) == contents(again)


def test_what_a_kept_number_needs_stays(store, manager, place, tmp_path):
    url, options = place
    fill(store, np.arange(ROWS), 0)
    manager.save(store)
    for version in range(1, 8):
        manager.push(url, keep=2, options=options)
        fill(store, np.arange(version), version)
        manager.save(store)
    manager.push(url, keep=2, options=options)
    assert manager.remote_numbers(url, options=options) == [7, 8]
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        for number in (7, 8):
            found = copy.pull(url, number=number, options=options)
            assert contents(found) == contents(kvemb.Checkpoint(manager.path(number)))
        with pytest.raises(CheckpointNotFound, match=r"there is no checkpoint 1 in .*; it has 7, 8"):
            copy.pull(url, number=1, options=options)
    files, root = fsspec.core.url_to_fs(url, **(options or {}))
    assert manager.push(url, whole=True, keep=1, options=options).deltas == 0
    files.invalidate_cache()
    assert {path.rpartition("/")[2] for path in files.find(f"{root}/files")} == {
        entry.sha256 for entry in manager.latest().inventory.values()
    }


def test_a_new_number_does_not_follow_what_lacks_a_file(store, manager, url):
    (base,) = chain_of(manager, store, url, 1)
    files, root = fsspec.core.url_to_fs(url)
    sha256 = next(sha256 for sha256, entry in base.files.items() if entry.bytes)
    files.rm_file(f"{root}/files/{sha256[:2]}/{sha256}")
    manager.save(store)
    assert manager.push(url, number=2).deltas == 0


@pytest.mark.slow
def test_a_new_number_does_not_follow_what_is_damaged(store, manager, url, tmp_path):
    last = chain_of(manager, store, url, 3)[-1]
    files, root = fsspec.core.url_to_fs(url)
    sha256 = last.deltas[0].sha256
    path = f"{root}/files/{sha256[:2]}/{sha256}"
    data = files.cat_file(path)
    files.pipe_file(path, data[:-1] + b"?")
    manager.save(store)
    assert manager.push(url, number=4, verify=True).deltas == 0
    files.rm_file(path)
    manager.save(store)
    assert manager.push(url, number=5).deltas == 1, "it follows the whole one"
    assert contents(pulled(url, tmp_path / "five", 5)) == contents(manager.latest())
    with pytest.raises(Corruption, match="the delta of checkpoint 00000002, is missing"):
        pulled(url, tmp_path / "three", 3)
    assert manager.push(url, number=3).deltas == 0
    assert contents(pulled(url, tmp_path / "three", 3)) == contents(kvemb.Checkpoint(manager.path(3)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", quick(range(6)))
def test_a_random_history_of_pushes_prunes_and_pulls(open_store, manager, url, tmp_path, seed):
    """The model: what each number held when it was saved. Copies pull at random, and go on from what they have."""
    chance = np.random.default_rng(seed)
    store = open_store(tmp_path / "store")
    wanted: dict[int, Any] = {}
    kept: set[int] = set()
    kinds: set[int] = set()
    for turn in range(30):
        action = chance.integers(0, 10)
        name = f"{chance.integers(0, 3)}"
        if action < 3 or not wanted:
            fill(store, chance.integers(-500, 500, int(chance.integers(1, 300))), turn, name)
        elif action == 3 and name in store.variables:
            store.variables[name].remove(chance.integers(-500, 500, 50))
        elif action == 4 and name in store.variables:
            store.drop_variable(name)
        elif action == 5 and kept:
            number = int(chance.choice(sorted(kept)))
            root = tmp_path / f"copy{chance.integers(0, 3)}"
            assert contents(pulled(url, root, number)) == wanted[number]
        elif action == 6 and wanted:
            store.close()
            store = open_store(tmp_path / "store")
        if action < 5 and chance.random() < 0.8:
            made = manager.save(store)
            number = max(wanted, default=0) + 1
            wanted[number] = contents(made)
            keep = int(chance.integers(1, 4)) if chance.random() < 0.3 else None
            if chance.random() < 0.9:
                done = manager.push(url, keep=keep, whole=chance.random() < 0.1, verify=chance.random() < 0.2)
                kinds.add(done.deltas)
                kept = set(sorted({*kept, number})[-keep:]) if keep else {*kept, number}
            assert manager.remote_numbers(url) == sorted(kept)
    for number in sorted(kept):
        assert contents(pulled(url, tmp_path / f"last{number}", number)) == wanted[number]
    assert max(kinds) >= 2
    store.close()
