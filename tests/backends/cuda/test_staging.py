"""Pinned memory that all tables of a device share: its bounds, who pays for it, and many threads at once."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cuda_devices import device_of, use_for_gpus
from cuda_on_cpu import CpuDevice, CudaOnCpuTable
from late_device import LateDevice

import kvemb
from kvemb import registry
from kvemb.backends.cuda.device import Memory
from kvemb.backends.cuda.queue import Queue
from kvemb.backends.cuda.staging import (
    ARRIVING_PART,
    LANES_PART,
    PIECE_BYTES,
    SMALL_BYTES,
    SMALL_PART,
    SMALL_UPLOADS,
    PendingDownload,
    Staging,
)
from kvemb.handle import inside

MIB = 1 << 20


class SharedDevice(CpuDevice):
    """A device of several tables. pinned_sizes: bytes of each piece of pinned memory, ever."""

    def __init__(self) -> None:
        device_of("cpu")
        super().__init__()
        self.pinned_sizes: list[int] = []

    def pinned(self, nbytes: int) -> np.ndarray:
        self.pinned_sizes.append(nbytes)
        return super().pinned(nbytes)


class Payer:
    """A budget. used: bytes."""

    def __init__(self) -> None:
        self.used = 0

    def use(self, nbytes: int) -> None:
        self.used += nbytes


def sent(queue: Queue, given: np.ndarray) -> Memory:
    """A copy of an array on the device."""
    memory = queue.device.allocate(given.nbytes)
    queue.upload(memory.address, given)
    return memory


def crossed(queue: Queue, given: np.ndarray) -> np.ndarray:
    """A copy of an array that went to the device and back."""
    memory, got = sent(queue, given), np.zeros_like(given)
    queue.download(got, memory.address)
    return got


def keys_on_their_way(queue: Queue, keys: np.ndarray) -> PendingDownload | None:
    """What begin_download makes of keys."""
    memory = sent(queue, keys)
    begun = queue.begin_download(memory.address, keys.nbytes)
    crossed(queue, keys[:1])  # so that the memory may be freed
    return begun


def test_many_tables_take_no_more_than_one():
    device = SharedDevice()
    payer = Payer()
    device.staging.account(payer.use, 1 << 30)
    for _ in range(26):
        queue = Queue(device)
        for count in (1, 100, 8000, 600_000):
            given = np.arange(count)
            assert (crossed(queue, given) == given).all()
    assert payer.used == device.staging.nbytes <= 2 * PIECE_BYTES + SMALL_UPLOADS * SMALL_BYTES
    assert sum(device.pinned_sizes) == device.staging.nbytes + 26 * 512, "nothing was made anew; a table has 512 bytes"


@pytest.mark.parametrize("total", [4 * MIB, 64 * MIB])
def test_what_is_taken_is_a_small_share_of_the_smallest_budget(total):
    device, small, large = SharedDevice(), Payer(), Payer()
    device.staging.account(large.use, 1 << 40)
    device.staging.account(small.use, total)
    with ThreadPoolExecutor(8) as threads:
        queues = [Queue(device) for _ in range(8)]
        given = np.arange(300_000)
        for queue in queues:
            for count in range(1, 9000, 250):
                sent(queue, np.arange(count))
        for got in threads.map(crossed, queues, [given] * 8):
            assert (got == given).all()
    assert 0 < small.used == large.used <= total // LANES_PART + total // SMALL_PART


def test_a_small_budget_does_not_pay_for_what_larger_ones_had_before_it():
    device, large, small, total = SharedDevice(), Payer(), Payer(), 4 * MIB
    device.staging.account(large.use, 1 << 40)
    queue = Queue(device)
    sent(queue, np.arange(1 << 17))
    sent(queue, np.arange(1000))
    device.staging.account(small.use, total)
    most = total // LANES_PART + total // SMALL_PART + total // ARRIVING_PART
    assert large.used == device.staging.nbytes > most == small.used
    device.staging.took(-device.staging.nbytes)
    assert large.used == small.used == 0


def test_a_budget_pays_once_and_as_long_as_its_store_is_there():
    device, payer, other = SharedDevice(), Payer(), Payer()
    staging = device.staging
    for _ in range(3):
        staging.account(payer.use, 1 << 40)
    queue = Queue(device)
    sent(queue, np.arange(1000))
    assert payer.used == staging.nbytes == SMALL_BYTES
    staging.account(other.use, 1 << 40)
    assert other.used == SMALL_BYTES
    staging.account(Payer().use, 4 * MIB)
    assert staging.piece_bytes < MIB
    gc.collect()
    staging.account(other.use, 1 << 40)
    assert staging.piece_bytes == MIB, "a store that is gone bounds nothing"
    sent(queue, np.arange(1 << 17))
    assert payer.used == other.used == staging.nbytes > SMALL_BYTES


@pytest.mark.parametrize("seed", range(3))
def test_threads_with_tables_of_their_own_wait_for_no_table_and_mix_no_bytes(seed):
    device = LateDevice(seed)
    device.staging = Staging(device, 1 << 12, 1 << 8)
    queues = [Queue(device) for _ in range(6)]  # more than there are lanes

    def work(number: int) -> bool:
        chance = np.random.default_rng(number)
        given = [chance.integers(0, 1 << 60, int(chance.integers(1, 3000))) for _ in range(12)]
        return all((crossed(queues[number], each) == each).all() for each in given)

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6), timeout=600))


class Stopped(BaseException):
    """What Ctrl-C raises, as a class of its own."""


def test_a_piece_whose_copy_was_interrupted_is_not_filled_before_that_is_over(monkeypatch):
    for seed in range(20):
        device = LateDevice(seed)
        staging = device.staging = Staging(device, 1 << 12, 1 << 8)
        first, second = Queue(device), Queue(device)
        old, new = np.full(500, 3), np.arange(1000)
        memory, other = first.device.allocate(4000), second.device.allocate(8000)
        for lane in staging._lanes:  # the pieces are there, so that the next copies use them
            for piece in lane._pieces:
                piece.take(1, 1 << 12)
        first.upload(memory.address, old)

        def stopped(event, stream):
            raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(device, "record", stopped)
            with pytest.raises(Stopped):
                first.download(np.zeros(500, np.int64), memory.address)
        second.upload(other.address, new)
        got = np.zeros(1000, np.int64)
        second.download(got, other.address)
        assert (got == new).all()


# What is on its way.


def test_keys_on_their_way_use_memory_again_whatever_their_number():
    device, payer = SharedDevice(), Payer()
    device.staging.account(payer.use, 1 << 30)
    queue = Queue(device)
    for count in range(1000, 2000, 7):
        download = keys_on_their_way(queue, np.arange(count))
        assert download.copied().view(np.int64).tolist() == list(range(count))
    assert device.pinned_sizes.count(1 << 14) <= SMALL_UPLOADS + 2, "two for what arrives, at most"
    assert payer.used == device.staging.nbytes


def test_more_keys_on_their_way_than_the_budget_has_memory_for_do_not_start():
    device, payer, total = SharedDevice(), Payer(), 4 * MIB
    device.staging.account(payer.use, total)
    queue, keys = Queue(device), np.arange(4096)
    first = [keys_on_their_way(queue, keys) for _ in range(4)]
    assert None not in first
    assert device.staging.download_bytes == total // ARRIVING_PART
    assert keys_on_their_way(queue, keys) is None
    assert (first.pop().copied().view(np.int64) == keys).all()
    second = keys_on_their_way(queue, keys)
    assert second is not None
    del first, second  # given up
    larger = keys_on_their_way(queue, np.arange(16_384))
    assert larger is not None, "smaller memory is freed for it"
    assert (larger.copied().view(np.int64) == np.arange(16_384)).all()
    assert device.staging.download_bytes == total // ARRIVING_PART
    assert payer.used == device.staging.nbytes


def test_memory_of_what_was_given_up_on_its_way_is_used_after_that():
    for seed in range(20):
        device = LateDevice(seed)
        one, other = Queue(device), Queue(device)
        old, new = sent(one, np.full(1000, -1)), sent(other, np.arange(1000))
        one.begin_download(old.address, 8000)  # given up at once
        download = other.begin_download(new.address, 8000)
        assert len(device.staging._idle) == 0
        device.finish_all()
        assert download.copied().view(np.int64).tolist() == list(range(1000))


def test_without_pinned_memory_nothing_is_on_its_way(monkeypatch):
    device, payer = SharedDevice(), Payer()
    device.staging.account(payer.use, 1 << 30)
    queue = Queue(device)
    memory = queue.device.allocate(800)
    queue.upload(memory.address, np.arange(100))
    before = payer.used

    def none_left(nbytes):
        raise MemoryError

    monkeypatch.setattr(device, "pinned", none_left)
    assert queue.begin_download(memory.address, 800) is None
    assert payer.used == before


def test_a_store_pays_for_what_its_tables_share_of_its_memory_budget(tmp_path: Path, monkeypatch) -> None:
    device = SharedDevice()
    use_for_gpus(monkeypatch, device)
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        variables = [store.get_variable(name, dim=4, devices="gpu:0", hot_rows=1024) for name in ("a", "b", "c")]
        host = inside(store).budgets.host
        before, had = host.free, device.staging.nbytes
        for variable in variables:
            variable.upsert(np.arange(1000), np.ones((1000, 4), np.float32))
            variable.lookup(np.arange(1000))
        taken = device.staging.nbytes - had
        assert 0 < taken <= 16 * MIB // LANES_PART + 16 * MIB // SMALL_PART
        assert host.free == before - taken


@pytest.mark.slow
def test_rows_cross_without_pinned_memory_which_is_said_once(tmp_path: Path, monkeypatch, caplog) -> None:
    device = SharedDevice()
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:SmallCudaTable")
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: device))
    values, left = np.arange(8000, dtype=np.float32).reshape(2000, 4), iter([True] * 5)

    def none_left(nbytes):
        if next(left, False):
            return np.empty(nbytes, np.uint8)
        raise MemoryError("the host has no pinned memory left")

    monkeypatch.setattr(device, "pinned", none_left)
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        variable = store.get_variable("rows", dim=4, devices="gpu:0")
        for start in range(0, 2000, 200):  # each evicts rows of the one before
            variable.upsert(np.arange(start, start + 200), values[start : start + 200])
        store.flush()
        np.testing.assert_array_equal(variable.lookup(np.arange(2000)), values)
    assert caplog.text.count("use unpinned memory") == 1
