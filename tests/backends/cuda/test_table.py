"""The GPU's hot table against a plain model of it, whatever order its threads run in. tests/backends/test_hot_table.py
has what it shares with the others. On a machine with a GPU both run there too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_device import CountingDevice
from cuda_devices import DEVICES, device_of, table_on
from cuda_life import Life
from cuda_on_cpu import CpuDevice
from every_optimizer import single
from quick import quick

from kvemb.backends.cuda.device import Memory
from kvemb.backends.cuda.table import CudaTable
from kvemb.optimizers import Momentum
from kvemb.restrict import ScoreRule
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.schema import Schema, SlotShape, dtype_of

SCHEMA = Schema(dtype_of("int64"), dtype_of("float32"), 1, (SlotShape("a", 1),))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", quick([0, 1, 2, 4, 7]))
def test_a_table_lives_as_its_model_does(seed, device):
    Life(seed, device_of(device, seed)).run(30)


@pytest.fixture
def _on_cpu() -> None:
    device_of("cpu")


def rows_of(keys: Any) -> RowBlock:
    rows = RowBlock(SCHEMA, len(keys))
    rows.keys[:], rows.scores[:], rows.flags[:] = keys, np.arange(len(keys)), DIRTY
    rows.words[:] = rows.keys.view(np.uint64)[:, None]
    return rows


@pytest.mark.usefixtures("_on_cpu")
def test_a_large_table_comes_and_goes_in_chunks():
    table = table_on(CpuDevice(), SCHEMA, 1, 128 * 5000)
    assert (table.capacity_rows, table.max_capacity_rows) == (8 * 128, 5000 * 128), "a 1024th of the largest"
    assert CudaTable.first_rows(1, 128 * 5000) == 8 * 128
    assert CudaTable.first_rows(128, 128 * 1024) == 128
    rows = rows_of(np.random.default_rng(0).permutation(8000)[:2000] - 4000)
    assert len(table.insert(rows, reserve=lambda cells: True)) == 0
    assert table.capacity_rows % (8 * 128) == 0
    assert table.nbytes == table.capacity_rows * CudaTable.bytes_per_cell(SCHEMA)
    read = table.read(table.find(rows.keys))
    np.testing.assert_array_equal(read.words, rows.words)
    left = table.shrink(1, 1)
    before = table.capacity_rows
    assert len(left) + table.size == 2000
    assert len(table.shrink(1, before)) == 0
    assert table.capacity_rows == before


@pytest.mark.usefixtures("_on_cpu")
def test_the_last_chunk_of_a_table_may_be_smaller():
    table = table_on(CpuDevice(), SCHEMA, 128 * 1500, 128 * 1500)
    assert (table.capacity_rows, table.step_rows) == (1500 * 128, 0)
    assert len(table.shrink(1, 1)) == 0
    assert (table.capacity_rows, table.step_rows) == (1498 * 128, 2 * 128)
    table.grow()
    assert table.capacity_rows == 1500 * 128


CHUNK_BYTES = 128 * CudaTable.bytes_per_cell(SCHEMA)


class FullDevice(CpuDevice):
    """A device that at some point has no memory for another chunk of one bucket."""

    spent = False

    def allocate(self, nbytes: int) -> Memory:
        if self.spent and nbytes == CHUNK_BYTES:
            raise MemoryError(f"no room for {nbytes} bytes")
        return super().allocate(nbytes)


@pytest.mark.usefixtures("_on_cpu")
def test_without_memory_for_growth_nothing_has_changed():
    device = FullDevice()
    table = table_on(device, SCHEMA, 128, 1024)
    rows = rows_of(np.arange(100))
    table.insert(rows)
    device.spent = True
    with pytest.raises(MemoryError, match="no room"):
        table.grow()
    assert (table.capacity_rows, table.size) == (128, 100)
    np.testing.assert_array_equal(table.read(table.find(rows.keys)).words, rows.words)


@pytest.mark.usefixtures("_on_cpu")
def test_without_memory_for_growth_rows_are_evicted_and_it_is_said_once(caplog):
    device = FullDevice()
    table = table_on(device, SCHEMA, 128, 1024)
    rows = rows_of(np.arange(128 + 64))
    device.spent = True
    left = table.insert(rows, reserve=lambda cells: True)
    assert (table.capacity_rows, table.step_rows) == (128, 0)
    assert (len(left), table.size) == (64, 128)
    assert left.keys.tolist() == list(range(64))
    table.insert(rows_of(np.arange(1000, 1100)), reserve=lambda cells: True)
    assert table.step_rows == 0, "it is not asked for again at once"
    for start in range(2000, 3000, 128):
        table.insert(rows_of(np.arange(start, start + 128)), reserve=lambda cells: True)
    assert [record.getMessage() for record in caplog.records] == [
        f"a hot table stays at 128 rows: no room for {CHUNK_BYTES} bytes; open the store with a smaller device_memory"
    ]
    device.spent = False
    for start in range(4000, 4300, 100):
        table.insert(rows_of(np.arange(start, start + 100)), reserve=lambda cells: True)
    assert table.capacity_rows > 128


@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("setarch") is None, reason="needs Linux and setarch")
def test_threads_of_kernels_do_not_race():
    """Under ThreadSanitizer: it watches kernels alone, since nothing else is compiled for it."""
    library = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("ThreadSanitizer is not installed: g++ has no libtsan.so")
    tests = Path(__file__).parents[2]
    environment = {**os.environ, "LD_PRELOAD": library, "TSAN_OPTIONS": "exitcode=66", "PYTHONPATH": str(tests)}
    command = ["setarch", "-R", sys.executable, str(tests / "cuda_life.py"), "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, cwd=tests.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.usefixtures("_on_cpu")
def test_of_a_call_on_hot_rows_the_host_gets_the_rows_and_eight_bytes():
    device = CountingDevice()
    table = table_on(device, SCHEMA, 256, 256)
    table.insert(rows_of(np.arange(100)))
    out, cells = np.empty((100, 1), np.float32), table.find(np.arange(100))
    device.start()
    table.lookup(np.arange(100), out, ScoreRule.COUNT, 1.0)
    assert device.downloads == [8, 400]
    table.upsert(np.arange(100), out, 2)
    assert device.downloads == [8, 400, 8]
    assert device.waits == 3
    table.apply(cells, Momentum(0.1), out, 3, single(100), 0)
    table.assign(cells, out, 4)
    table.add(cells, out, out, 5)
    assert device.downloads == [8, 400, 8]
    assert device.waits == 3
