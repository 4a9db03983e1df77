"""What a store takes of a GPU's memory: cells, buffers for calls and what sorting takes are in device_memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arrays_on_device import there
from cuda_devices import device_of, use_for_gpus
from short_device import ShortDevice

import kvemb
from kvemb.handle import inside
from kvemb.optimizers import Adagrad

DIM = 64


def test_a_store_takes_device_memory_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device_of("cpu")
    device, limit = ShortDevice(), 4 << 20
    use_for_gpus(monkeypatch, device)
    with kvemb.open(tmp_path / "store", memory_budget="16MiB", device_memory=limit) as store:
        var = store.get_variable("rows", dim=DIM, devices="gpu:0", optimizer=Adagrad(0.1))
        budget = next(iter(inside(store).budgets._of_device.values()))
        table = inside(var).hot_tables.tables[0]
        for start in range(0, 9000, 300):
            var.upsert(np.arange(start, start + 300), np.ones((300, DIM), np.float32))
        cells, before = table.capacity_rows, device.taken
        assert limit * 0.7 < before <= limit
        for count in (500, 1000, 2000):  # buffers grow, so cells are given up
            keys = np.arange(count)
            var.lookup(there(keys))
            var.apply_gradients(there(keys), there(np.ones((count, DIM), np.float32)))
        var.size(), var.lookup(there(keys[:1]))
        with inside(var).storage.access.held():  # so that no thread moves rows
            assert table.capacity_rows < cells
            assert device.taken <= limit
            assert budget.free == limit - table.nbytes - table.cells.buffers.nbytes
            assert inside(var).hot_tables.tables[1].size > 0, "dirty rows went below, not to disk"
        assert var.stats.cold_writes == 0
        assert var.size() == 9000
        store.check()
        hot_tables = inside(var).hot_tables
    hot_tables.memory.end()
    assert budget.free == limit
