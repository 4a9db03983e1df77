"""Chunks of buckets and buffers for a call, in the memory of a device."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import CpuDevice
from short_device import ShortDevice

from kvemb.backends.cuda.device import Memory
from kvemb.backends.cuda.memory import PAGE_BYTES, BucketChunks, Buffers, bytes_per_cell, chunk_shift, taken_bytes
from kvemb.backends.cuda.queue import Queue
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema, dtype_of

SCHEMA = Schema(dtype_of("int64"), dtype_of("float32"), 3, ())


class CountingDevice(CpuDevice):
    """A device that counts its memory. left: how often it may still give some."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.left = 1000

    def allocate(self, nbytes: int) -> Memory:
        if self.left == 0:
            raise MemoryError("spent")
        self.left -= 1
        self.sizes.append(nbytes)
        return super().allocate(nbytes)


def test_chunks_are_a_thousandth_of_the_largest_table():
    assert [chunk_shift(buckets) for buckets in (1, 1024, 1025, 1 << 20)] == [0, 0, 1, 10]


def test_the_last_chunk_has_what_the_others_leave():
    device = CountingDevice()
    chunks = BucketChunks(Queue(device), SCHEMA, 1025)
    assert [chunks.rounded(buckets) for buckets in (1, 2, 3, 1025)] == [2, 2, 4, 1025]
    chunks.resize(1024)
    chunks.resize(1025)
    bucket = 128 * bytes_per_cell(SCHEMA)
    assert device.sizes == [8 * 513, *[2 * bucket] * 512, bucket]
    addresses = np.empty(513, np.uint64)
    Queue(device).download(addresses, chunks.address)
    assert len(set(addresses.tolist())) == 513


def test_chunks_without_memory_for_more_are_as_they_were():
    device = CountingDevice()
    chunks = BucketChunks(Queue(device), SCHEMA, 8)
    chunks.resize(2)
    device.left = 3
    with pytest.raises(MemoryError, match="spent"):
        chunks.resize(6)
    assert chunks.buckets == 2
    chunks.resize(1)
    device.left = 5
    chunks.resize(6)
    assert chunks.buckets == 6


def test_what_pages_leave_at_the_ends_of_chunks_is_accounted_for():
    chunks, used = BucketChunks(Queue(CountingDevice()), SCHEMA, (1 << 18) + 250), []
    chunk, page = 512 * 128 * bytes_per_cell(SCHEMA), PAGE_BYTES
    chunks.resize(512)
    chunks.account(used.append)
    assert used == [-chunk % page] == [chunks.lost]
    assert used[0] > 0
    chunks.resize(1024)
    assert sum(used) == chunks.lost == 2 * used[0]
    chunks.resize(0)
    assert sum(used) == chunks.lost == 0
    small = BucketChunks(Queue(CountingDevice()), SCHEMA, 1 << 17)
    small.resize(128)
    assert small.lost == 0, "other pieces share its page"
    assert [taken_bytes(nbytes) for nbytes in (1, page // 2, page // 2 + 1, page, page + 1)] == [
        1,
        page // 2,
        page,
        page,
        2 * page,
    ]


def test_a_large_buffer_has_whole_pages():
    device, used = CountingDevice(), []
    buffers = Buffers(Queue(device))
    buffers.account(used.append)
    buffers.of("keys", PAGE_BYTES + 8)
    assert device.sizes == [2 * PAGE_BYTES]
    assert sum(used) == buffers.nbytes == 2 * PAGE_BYTES
    buffers.of("keys", 2 * PAGE_BYTES)
    assert device.sizes == [2 * PAGE_BYTES]


def test_a_buffer_grows_and_is_kept():
    device = CountingDevice()
    buffers = Buffers(Queue(device))
    first = buffers.of("keys", 1000)
    assert buffers.of("keys", 10) == buffers.put("keys", np.arange(100)) == first
    buffers.of("keys", 2000)
    assert device.sizes == [1000, 2500]
    assert buffers.get(buffers.put("keys", np.arange(7)), 7, np.int64).tolist() == list(range(7))
    assert buffers.get(buffers.zeros("count", 3), 3, np.int64).tolist() == [0, 0, 0]
    assert buffers.put_once("table", np.arange(9)) == buffers.put_once("table", np.arange(9))
    assert buffers.get(buffers.put_once("table", np.arange(9) + 1), 9, np.int64).tolist() == list(range(1, 10))
    assert len(buffers.get(buffers.put("none", np.empty(0)), 0, np.float64)) == 0


def test_a_buffer_grows_to_what_is_asked_for_where_there_is_no_memory_for_more():
    device = ShortDevice()
    buffers = Buffers(Queue(device))
    buffers.of("keys", 1000)
    device.most = 2100
    buffers.of("keys", 2000)
    assert (device.taken, buffers.nbytes, device.refused) == (2000, 2000, 1)


def test_a_buffer_that_can_neither_grow_nor_come_back_is_the_least_one():
    device, used = ShortDevice(), []
    buffers = Buffers(Queue(device))
    buffers.account(used.append)
    least = buffers.of("keys", 1000)
    buffers.keep_least()
    for name in ("keys", "values"):
        buffers.of(name, 5000)
    device.most = 0  # somebody else takes what is freed
    for name in ("keys", "values"):
        with pytest.raises(MemoryError):
            buffers.of(name, 10_000)
    assert buffers.of("keys", 1000) == least
    assert sum(used) == buffers.nbytes == device.taken == 1000
    device.suffice()
    buffers.of("keys", 5000)
    assert sum(used) == buffers.nbytes == device.taken


def test_memory_that_was_refused_is_asked_for_ever_less_often_and_again_where_there_is_some():
    device = ShortDevice()
    buffers = Buffers(Queue(device))
    assert buffers.fitting(64, 16, keys=8, rows=100) == 64
    assert buffers.fitting(10, 16, keys=8) == 16
    device.give(0)
    assert {buffers.fitting(10_000, 16, keys=8, rows=100) for _ in range(500)} == {64}
    assert 8 < device.refused < 120, "of 500 calls, 8 or 9 ask, each for less and less"
    device.suffice()
    got = [buffers.fitting(10_000, 16, keys=8, rows=100) for _ in range(600)]
    assert got == sorted(got)
    assert (got[0], got[-1]) == (64, 10_000)
    device.give(0)
    held = buffers.fitting(50_000, 16, keys=8, rows=100)
    assert 10_000 <= held < 20_000
    assert buffers.fitting(10_000, 16, keys=8, rows=100) == 10_000
    device.suffice()
    assert [buffers.fitting(50_000, 16, keys=8, rows=100) for _ in range(2)] == [held, 50_000], "it waits 1 call again"


def test_a_part_of_what_is_asked_for_is_taken_where_there_is_memory_for_it():
    device = ShortDevice()
    buffers = Buffers(Queue(device))
    assert buffers.fitting(16, 16, keys=8) == 16
    device.give(2000)
    assert buffers.fitting(1000, 16, keys=8) == 240
    device.give(-device.taken)
    with pytest.raises(MemoryError):
        buffers.fitting(16, 16, other=8)


def test_rows_are_columns_in_a_buffer():
    buffers = Buffers(Queue(CpuDevice()))
    rows = RowBlock(SCHEMA, 21)
    rows.keys[:], rows.scores[:], rows.steps[:], rows.flags[:] = np.arange(21), 0.5, 7, 3
    rows.words[:] = np.arange(42).reshape(21, 2)
    address, pitch = buffers.put_rows("rows", rows)
    assert pitch == 32
    got = RowBlock(SCHEMA, 21)
    buffers.get_rows(address, pitch, got)
    for column in ("keys", "scores", "steps", "flags", "words"):
        np.testing.assert_array_equal(getattr(got, column), getattr(rows, column))
