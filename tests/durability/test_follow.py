"""Stores that follow another process's store on the same machine, and readers beside a writer."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from deltas import fill
from histories import DIM

import kvemb
from kvemb.errors import Locked, StoreNotFound


def test_only_stores_can_be_followed(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    taken = store.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="never changes"):
        kvemb.open(taken, follow=True)
    with pytest.raises(StoreNotFound):
        kvemb.open(tmp_path / "none", follow=True)
    with pytest.raises(ValueError, match="follow=True"):
        open_store(tmp_path / "store", read_only=True).refresh()


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
                assert (rows >= last).all()
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


WRITER = """
    import sys, time
    import numpy as np
    import kvemb
    with kvemb.open(sys.argv[1], memory_budget="8MiB") as store:
        table = store.get_variable("table", dim=3)
        print("ready", flush=True)
        for turn in range(1_000_000):
            table.upsert(np.arange(500), np.full((500, 3), turn, np.float32))
            store.flush()
"""


def test_two_processes_one_writes_others_read(tmp_path):
    """A second writer is told at once; readers of a checkpoint see it unchanged; followers see whole points."""
    with kvemb.open(tmp_path / "store") as store:
        fill(store, np.arange(500), -1)
        taken = store.checkpoint(tmp_path / "checkpoint")
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            began = time.monotonic()
            with pytest.raises(Locked, match="open for writing"):
                kvemb.open(tmp_path / "store")
            took = time.monotonic() - began
            with kvemb.open(tmp_path / "store", follow=True) as follower, kvemb.open(taken, read_only=True) as reader:
                moved, ends = 0, time.monotonic() + 60
                while moved < 5 and time.monotonic() < ends:
                    moved += follower.refresh()
                    rows = follower.variables["table"].lookup(np.arange(500))
                    assert (rows == rows[0, 0]).all()
                    assert (reader.variables["table"].lookup(np.arange(500)) == -1).all()
                assert moved == 5
        finally:
            writer.kill()
    assert took < 1, "Locked must come at once"
    with kvemb.open(tmp_path / "store") as again:
        rows = again.variables["table"].lookup(np.arange(500))
        assert (rows == rows[0, 0]).all()
