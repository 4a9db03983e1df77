"""A served model: rows and dense part are of one checkpoint, whatever happens beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.errors import CheckpointNotFound, Closed, ReadOnly

KEYS = [1, 2]


@pytest.fixture
def series(tmp_path: Path) -> Iterator[kvemb.CheckpointManager]:
    with kvemb.CheckpointManager(tmp_path / "series", keep=1) as made:
        yield made


@pytest.fixture
def save(store, series) -> Callable[[int], kvemb.Checkpoint]:
    """Saves a checkpoint in which rows and dense part are one number."""
    table = store.get_variable("table", dim=2, initializer=kvemb.RandomNormal(0.0, 1.0))

    def save(version: int) -> kvemb.Checkpoint:
        table.upsert(KEYS, np.full((2, 2), version, np.float32))
        saved: kvemb.Checkpoint = series.save(store, files={"dense": str(version).encode()})
        return saved

    return save


class Model:
    """What load() makes: rows and a dense part."""

    def __init__(self, store: kvemb.Store, checkpoint: kvemb.Checkpoint) -> None:
        self.store, self.dense = store, float(checkpoint.files["dense"].read_bytes())
        self.table = kvemb.get_variable("table", dim=2)

    def __call__(self, keys: Any = KEYS) -> tuple[list[float], float]:
        return self.table.lookup(keys)[:, 0].tolist(), self.dense


def served(series: kvemb.CheckpointManager, **how: Any) -> kvemb.ServedModel[Model]:
    return kvemb.ServedModel(series.root, Model, memory_budget="16MiB", **how)


def test_rows_and_dense_part_move_together(series, save):
    first = save(1)
    with served(series) as model:
        assert model() == ([1, 1], 1)
        assert not model.refresh()
        assert model.checkpoint.id == first.id
        second = save(2)  # the first one is deleted
        assert model() == ([1, 1], 1)
        assert model.refresh()
        assert model() == ([2, 2], 2)
        assert model.checkpoint.id == second.id
        with model.use() as inside, pytest.raises(ReadOnly):
            inside.table.upsert([1], np.zeros((1, 2), np.float32))


def test_a_model_in_use_stays_until_its_last_call_is_done(series, save):
    save(1)
    with served(series) as model:
        with model.use() as outer, model.use() as inner:
            assert outer is inner
            save(2)
            assert model.refresh()
            assert model() == ([2, 2], 2)
            assert outer() == ([1, 1], 1)
        with pytest.raises(Closed):
            outer()
        with model.use() as last:
            model.close()
            assert last() == ([2, 2], 2)
        with pytest.raises(Closed):
            last()
    with pytest.raises(Closed, match="is closed"):
        model()
    with pytest.raises(Closed, match="is closed"):
        model.refresh()
    model.close()


@pytest.mark.slow
def test_no_call_beside_refreshes_mixes_two_checkpoints(series, save):
    save(0)
    seen: list[tuple[list[float], float]] = []
    with served(series) as model:
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                seen.append(model())

        threads = [threading.Thread(target=serve) for _ in range(2)]
        for thread in threads:
            thread.start()
        for version in range(1, 4):
            save(version)
            model.refresh()
        ended.set()
        for thread in threads:
            thread.join()
        assert model() == ([3, 3], 3)
    assert all(rows == [dense, dense] for rows, dense in seen)


@pytest.mark.parametrize(
    ("unknown", "expected"), [(0, 0), (1.5, 1.5), ([7, 8], 7), ({"table": [3, 4]}, 3), ({"table": np.float32(2)}, 2)]
)
def test_a_key_without_a_row_reads_as_the_caller_says(series, save, unknown, expected):
    save(1)
    with served(series, unknown=unknown) as model:
        assert model([1, 99]) == ([1, expected], 1)
        save(2)
        model.refresh()
        assert model([1, 99]) == ([2, expected], 2)
    with served(series) as model:
        assert model([99])[0] != [expected], "that of the initializer"


def test_an_unknown_row_that_fits_no_variable_is_refused(series, save):
    save(1)
    with pytest.raises(KeyError, match="variable 'tabel', which load did not open; there is table"):
        served(series, unknown={"tabel": 0})
    with pytest.raises(ValueError, match="2"):
        served(series, unknown=[1, 2, 3])
    with pytest.raises(TypeError):
        served(series, unknown="zeros")


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(series, save, store):
    with pytest.raises(CheckpointNotFound, match="has no checkpoint yet"):
        served(series)
    save(1)
    with served(series) as model:
        broken = series.save(store, files={"dense": b"no number"})
        with pytest.raises(ValueError, match="could not convert"):
            model.refresh()
        assert model() == ([1, 1], 1)
        assert model.checkpoint.id != broken.id
        save(2)
        assert model.refresh()
        assert model() == ([2, 2], 2)


def test_a_checkpoint_that_is_deleted_while_it_is_loaded_is_no_error(series, save):
    save(1)
    calls: list[int] = []

    def load(store: kvemb.Store, checkpoint: kvemb.Checkpoint) -> Model:
        calls.append(1)
        if len(calls) == 1:
            save(2)  # deletes this one
        return Model(store, checkpoint)

    with kvemb.ServedModel(series.root, load, memory_budget="16MiB") as model:
        assert model() == ([2, 2], 2)
    assert len(calls) == 2
