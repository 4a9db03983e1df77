"""Ctrl-C at any instant leaves every acknowledged row as it was."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb import sizing
from kvemb.interrupts import uninterrupted

KEYS, DIM, BATCH, ROUNDS = 600, 4, 40, 25


def interrupted(steps: list[str]) -> None:
    with uninterrupted():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("inner")
        steps.append("outer")


def test_ctrl_c_waits_for_the_end_of_the_outermost_block() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(steps)
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_left_alone() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


class Writer:
    """Writes versions of random rows until it is interrupted, and knows which were acknowledged."""

    def __init__(self, var: kvemb.Variable, chance: np.random.Generator) -> None:
        self.var, self.chance = var, chance
        self.acknowledged, self.version = np.zeros(KEYS), 0
        self.writing = np.empty(0, np.int64)

    def run(self) -> None:
        while True:
            self.version += 1
            self.writing = self.chance.choice(KEYS, BATCH, replace=False)
            self.var.upsert(self.writing, np.full((BATCH, DIM), self.version, np.float32))
            self.acknowledged[self.writing] = self.version
            self.var.lookup(self.chance.choice(KEYS, BATCH))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_no_acknowledged_row_is_lost_to_ctrl_c(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "MIN_SPILL_ROWS", 32)
    monkeypatch.setattr(sizing, "MAX_SPILL_ROWS", 32)
    chance = np.random.default_rng(seed)
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        var = store.get_variable("rows", dim=DIM, hot_rows=32, kv_creator=kvemb.MemoryCreator())
        var.upsert(np.arange(KEYS), np.zeros((KEYS, DIM), np.float32))
        writer = Writer(var, chance)
        timer = threading.Timer(0.01 + 0.04 * chance.random(), os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            writer.run()
        timer.join()
        rows, exists = var.lookup(np.arange(KEYS), return_exists=True, touch=False)
        assert exists.all()
        assert var.size() == KEYS
        assert (rows == rows[:, :1]).all()
        changed = rows[:, 0] != writer.acknowledged
        changed[writer.writing] &= rows[writer.writing, 0] != writer.version
        assert not changed.any()
