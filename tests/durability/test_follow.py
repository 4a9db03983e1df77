"""Stores that follow another process's store on the same machine, and readers beside a writer."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from deltas import fill
from histories import DIM

import kvemb
from kvemb.errors import StoreNotFound
from kvemb.limits import Limits


def test_only_stores_can_be_followed(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    taken = store.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="never changes"):
        kvemb.open(taken, follow=True)
    with pytest.raises(StoreNotFound):
        kvemb.open(tmp_path / "none", follow=True)
    with pytest.raises(ValueError, match="follow=True"):
        open_store(tmp_path / "store", read_only=True).refresh()


@pytest.mark.slow
def test_refreshing_beside_lookups_never_shows_a_mixture(open_store, tmp_path):
    """Every point holds one value throughout; a reader may see only one in a call."""
    trainer = open_store(tmp_path / "store")
    keys = np.arange(2000)
    fill(trainer, keys, 0)
    trainer.flush()
    follower = open_store(tmp_path / "store", follow=True)
    seen = follower.get_variable("table", dim=DIM, hot_rows=256)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        chance, last = np.random.default_rng(seed), -1.0
        try:
            while not stop.is_set():
                some = chance.choice(keys, 300)
                seen.prefetch(some)
                rows = seen.lookup(some)
                assert float(rows.min()) == float(rows.max()) >= last
                last = float(rows.min())
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    for value in range(1, 25):
        fill(trainer, keys, value)
        trainer.flush()
        assert follower.refresh()
        time.sleep(0.005)
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert (seen.lookup(keys) == 24).all()


@pytest.mark.slow
def test_a_random_history_of_points_and_refreshes(open_store, tmp_path):
    """The model: each point's rows. Followers of their own pace, warm throughout, show the point they refreshed to."""
    chance, path = np.random.default_rng(7), tmp_path / "store"
    keys, names = np.arange(400), ("a", "b")
    trainer = open_store(path, limits=Limits(change_files=3, change_buffer_keys=37, change_epochs=6))
    for name in names:
        fill(trainer, keys, 0, name)
    trainer.flush()
    followers = [open_store(path, follow=True) for _ in range(3)]
    warm = 0
    for turn in range(100):
        name = str(chance.choice(names))
        action = chance.integers(0, 12)
        some = chance.choice(keys, int(chance.integers(1, 60)), replace=False)
        table = trainer.variables[name]
        if action < 5:
            fill(trainer, some, turn, name)
        elif action == 5:
            table.remove(some)
        elif action == 6:
            table.lookup(some)
        elif action == 7 and chance.random() < 0.2:
            table.clear()
        elif action == 8 and chance.random() < 0.3:
            trainer.drop_variable(name)
            fill(trainer, some, turn, name)
        elif action == 9:
            trainer.checkpoint(tmp_path / f"{turn}")
        elif action == 10 and chance.random() < 0.3:
            trainer.close()
            trainer = open_store(path, limits=Limits(change_files=3, change_buffer_keys=37, change_epochs=6))
        if chance.random() < 0.5:
            trainer.flush()
            wanted = {each: trainer.variables[each].lookup(keys, touch=False) for each in names}
            for follower in followers[: int(chance.integers(0, 4))]:
                follower.refresh()
                warm += follower.stats.rows_hot
                for each in names:
                    np.testing.assert_array_equal(follower.variables[each].lookup(keys), wanted[each])
    assert warm > 3000
