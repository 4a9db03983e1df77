"""A GPU that has no memory left, in what is no call on a row: durable points, refreshing a reader, opening, giving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_devices import device_of, use_for_gpus
from short_device import ShortDevice

import kvemb
from kvemb.handle import inside
from kvemb.optimizers import LAMB

DIM, ROWS, FEW = 5, 2000, 100
EACH = np.arange(ROWS)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ShortDevice:
    """Every GPU there is."""
    device_of("cpu")
    made = ShortDevice()
    use_for_gpus(monkeypatch, made)
    return made


def values_of(keys: Any, more: float = 0.0) -> Any:
    return np.repeat((np.asarray(keys) + more)[:, None], DIM, 1).astype(np.float32)


def filled(store: kvemb.Store, name: str = "rows", **how: Any) -> kvemb.Variable:
    """A variable with rows that came a few at a time, so that its buffers on the GPU are small."""
    var = store.get_variable(name, dim=DIM, **how)
    for start in range(0, ROWS, FEW):
        var.upsert(EACH[start : start + FEW], values_of(EACH[start : start + FEW]))
    return var


@pytest.mark.parametrize(
    "write",
    [
        lambda store, target: store.flush(),
        lambda store, target: store.checkpoint(target, block=False).result(),
        lambda store, target: store.close(),
    ],
    ids=["flush", "checkpoint", "close"],
)
def test_what_is_hot_becomes_durable_without_device_memory(
    device: ShortDevice, tmp_path: Path, write: Callable[[kvemb.Store, Path], Any]
) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="6MiB") as store:
        filled(store, devices="gpu:0")
        device.give(0)
        write(store, tmp_path / "checkpoint")
        assert inside(store).state.cause is None
    device.suffice()
    with kvemb.open(tmp_path / "store", memory_budget="6MiB") as store:
        np.testing.assert_array_equal(store.variables["rows"].lookup(EACH), values_of(EACH))


@pytest.mark.slow
def test_nor_does_it_need_what_somebody_else_took_when_a_call_found_no_memory(
    device: ShortDevice, tmp_path: Path
) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="6MiB") as store:
        var = filled(store, devices="gpu:0")
        var.lookup(EACH[:1000])
        device.most = 0
        with pytest.raises(MemoryError):
            var.lookup(EACH)
        store.flush()
        assert inside(store).state.cause is None
        device.suffice()
        np.testing.assert_array_equal(var.lookup(EACH), values_of(EACH))


def test_the_first_call_of_all_finds_no_memory_before_it_changes_a_row(device: ShortDevice, tmp_path: Path) -> None:
    keys = EACH[:FEW]
    for call in range(100):
        with kvemb.open(tmp_path / f"{call}", memory_budget="6MiB") as store:
            var = store.get_variable("rows", dim=DIM, devices=["gpu:0", "gpu:1"], optimizer=LAMB(0.1))
            device.fail(call)
            try:
                var.upsert(keys, values_of(keys))
                expected = keys
            except MemoryError:
                expected = keys[:0]
            device.failing = -1
            assert inside(store).state.cause is None
            np.testing.assert_array_equal(np.sort(var.export()[0]), expected)
        if not device.refused:
            break
    assert call > 10


@pytest.mark.slow
def test_a_reader_without_device_memory_is_refreshed_whole(device: ShortDevice, tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    with kvemb.open(tmp_path / "store", memory_budget="6MiB") as trainer:
        written = [filled(trainer, name) for name in names]
        trainer.flush()
        with kvemb.open(tmp_path / "store", memory_budget="6MiB", follow=True) as reader:
            seen = [reader.get_variable(name, dim=DIM, devices=["gpu:0", "gpu:1"]) for name in names]
            for start in range(0, ROWS, FEW):
                for var in seen:
                    var.lookup(EACH[start : start + FEW])
            for var in written:
                var.upsert(EACH[: ROWS // 2], values_of(EACH[: ROWS // 2], 0.5))
            trainer.flush()
            device.give(0)
            assert reader.refresh()
            assert device.refused
            device.suffice()
            expected = values_of(EACH, np.where(EACH < ROWS // 2, 0.5, 0))
            for var in seen:
                np.testing.assert_array_equal(var.lookup(EACH), expected)


@pytest.mark.slow
def test_a_warm_opening_takes_the_device_memory_that_there_is(device: ShortDevice, tmp_path: Path) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="6MiB") as store:
        filled(store)
    device.give(100_000)
    with kvemb.open(tmp_path / "store", memory_budget="6MiB", warm=True) as store:
        var = store.get_variable("rows", dim=DIM, devices="gpu:0")
        assert device.refused
        device.suffice()
        np.testing.assert_array_equal(var.lookup(EACH), values_of(EACH))
