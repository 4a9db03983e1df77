"""The order of a table's work on streams, and pinned memory for what crosses to and from the host."""

from __future__ import annotations

import numpy as np
import pytest
from counting_device import CountingDevice
from cuda_devices import device_of
from cuda_on_cpu import CpuDevice
from late_device import LateDevice

from kvemb.backends.cuda.device import Workspace, sorting_bytes
from kvemb.backends.cuda.queue import Queue
from kvemb.backends.cuda.staging import SMALL_UPLOADS, Staging

PIECE, SMALL = 1 << 12, 1 << 8


@pytest.fixture
def device() -> CountingDevice:
    device_of("cpu")
    device = CountingDevice()
    device.staging = Staging(device, PIECE, SMALL)
    return device


def test_arrays_of_any_size_come_and_go_in_pieces(device):
    work = Queue(device)
    for count in (0, 1, 31, 100, 512, 513, 5000):
        memory, given = work.device.allocate(8 * count + 1), np.arange(count)[::-1].copy()
        got, before = np.zeros(count, np.int64), given.copy()
        work.upload(memory.address, given)
        given[:] = 0  # what was given may change at once
        work.download(got, memory.address)
        assert got.tolist() == before.tolist()
    assert max(device.uploads + device.downloads) == PIECE
    assert len(device.pinned_sizes) <= 8, "pieces only grow"
    assert sum(device.pinned_sizes[-2:]) <= 2 * PIECE


def test_the_host_waits_once_for_a_small_copy_and_never_for_a_few_small_uploads(device):
    work = Queue(device)
    memory = work.device.allocate(100)
    device.start()
    for _ in range(3):
        for _ in range(SMALL_UPLOADS):
            work.upload(memory.address, np.arange(10))
        work.zero(memory.address, 8)
        assert device.waits == 0
        work.download(np.empty(1, np.int64), memory.address)
        assert device.waits == 1
        device.start()


def test_small_uploads_under_way_have_memory_of_their_own():
    device_of("cpu")
    device = LateDevice()
    device.staging = Staging(device, PIECE, SMALL)
    work = Queue(device)
    memory, given = work.device.allocate(8 * 100), np.empty(1, np.int64)
    for number in range(100):
        given[0] = number
        work.upload(memory.address + 8 * number, given)
    got = np.empty(100, np.int64)
    work.download(got, memory.address)
    assert got.tolist() == list(range(100))


def test_work_follows_other_work_from_stream_to_stream(device):
    work = Queue(device)
    memory, workspace = work.device.allocate(1 << 12), work.device.allocate(sorting_bytes(4))
    for at, stream in enumerate((None, 1, 77, 77, None, None, 2, 78, None)):
        if stream is None:
            work.zero(memory.address, 8)
            continue
        with work.on(stream, frozenset({100 + at})):
            work.zero(memory.address, 8)
            work.order(memory.address, 4, memory.address + 64, Workspace(workspace.address, sorting_bytes(4)))
        with work.on(stream):
            pass


def test_a_stream_of_an_array_waits_for_the_block_and_the_block_for_it(device):
    work = Queue(device)
    memory = work.device.allocate(64)
    with work.on(77, frozenset({5})):
        work.zero(memory.address, 8)
    device.zero(memory.address, 8, 5)  # the counting device fails if stream 5 did not wait
    with work.on(77, frozenset({5})):
        work.zero(memory.address, 8)


class StreamDevice(CpuDevice):
    """A device that counts its streams."""

    made = 0

    def stream(self) -> int:
        self.made += 1
        return super().stream()


def test_a_table_takes_the_stream_of_one_that_no_longer_exists():
    device_of("cpu")
    device = StreamDevice()
    kept = Queue(device)
    for _ in range(20):
        Queue(device)
    assert device.made == 2
    others = [Queue(device), Queue(device)]
    assert device.made == 3
    del kept, others
    assert len(set(device.idle_streams)) == 3
