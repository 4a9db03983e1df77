"""Device memory of a hot table: the chunks of its buckets, and buffers for the inputs and outputs of a call.

cells.cu describes the layout of a bucket, and of rows outside buckets. Not thread-safe: the table's caller locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from kvemb.backends.cuda.device import Memory, Workspace, sorting_bytes
from kvemb.backends.cuda.queue import Queue
from kvemb.rows.block import CELL_OVERHEAD_BYTES, RowBlock
from kvemb.rows.schema import Schema

CELLS = 128
# The base-2 logarithm of the most chunks of a table. A chunk has a power of two of buckets.
MAX_CHUNKS_BIT = 10
# Buffers hold a multiple of this number of rows, so that columns begin at multiples of 16 bytes.
PITCH = 16
# The unit in which a GPU allocates memory. Pieces smaller than half a page share pages; larger ones have their own.
PAGE_BYTES = 2 << 20
# The most calls that do not ask for memory after it was refused.
MAX_PAUSE = 1023
# The smallest buffer.
MIN_BYTES = 256


def bytes_per_cell(schema: Schema) -> int:
    """Return the bytes of a cell: a row, its key, score, step and flags, and a digest."""
    return schema.row_bytes + CELL_OVERHEAD_BYTES + 1


def taken_bytes(nbytes: int) -> int:
    """Return how much of a GPU's memory a piece of nbytes takes, the unusable end of its last page included."""
    return nbytes if nbytes <= PAGE_BYTES // 2 else -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def unit_of(*sizes: int) -> int:
    """Return how many bytes may be copied at a time between places that are multiples of these sizes."""
    return next(unit for unit in (16, 8, 4, 2, 1) if all(size % unit == 0 for size in sizes))


class BucketChunks:
    """The buckets of a table, in chunks. The addresses of the chunks are also in the device's memory.

    buckets: the number of buckets. max_buckets: the most there may be. A chunk has 2**shift buckets; the last chunk of
    a table of the largest size may have fewer. lost: unusable bytes at the ends of chunks.
    """

    def __init__(self, queue: Queue, schema: Schema, max_buckets: int) -> None:
        self._queue, self._bucket_bytes = queue, CELLS * bytes_per_cell(schema)
        self.buckets, self.max_buckets = 0, max_buckets
        self.shift = chunk_shift(max_buckets)
        self._chunks: list[Memory] = []
        self._addresses = queue.device.allocate(8 * self._chunk_count(max_buckets))
        self._use: Callable[[int], None] = lambda nbytes: None
        self.lost = 0

    def account(self, use: Callable[[int], None]) -> None:
        """Call use(nbytes) whenever nbytes more are lost, and once now."""
        self._use = use
        use(self.lost)

    @property
    def address(self) -> int:
        """The address of the chunks' addresses."""
        return self._addresses.address

    def rounded(self, buckets: int) -> int:
        """Return `buckets` rounded up to whole chunks, at most max_buckets."""
        return min(-(-buckets >> self.shift) << self.shift, self.max_buckets)

    def resize(self, buckets: int) -> None:
        """Change the number of buckets to a result of rounded(). On MemoryError nothing has changed."""
        chunks = self._chunks[: self._chunk_count(buckets)]
        while len(chunks) < self._chunk_count(buckets):
            size = min(1 << self.shift, self.max_buckets - (len(chunks) << self.shift))
            chunks.append(self._queue.device.allocate(size * self._bucket_bytes))
        self._queue.upload(self.address, np.array([chunk.address for chunk in chunks], np.uint64))
        self._chunks, self.buckets = chunks, buckets
        full, rest = divmod(buckets, 1 << self.shift)
        before, self.lost = self.lost, full * self._lost_of(1 << self.shift) + self._lost_of(rest)
        self._use(self.lost - before)

    def _lost_of(self, buckets: int) -> int:
        nbytes = buckets * self._bucket_bytes
        return taken_bytes(nbytes) - nbytes

    def _chunk_count(self, buckets: int) -> int:
        return -(-buckets >> self.shift)


def chunk_shift(max_buckets: int) -> int:
    """Return the base-2 logarithm of a chunk's buckets, for a table of at most `max_buckets`."""
    return max(0, (max_buckets - 1).bit_length() - MAX_CHUNKS_BIT)


class Buffers:
    """Buffers in device memory, by name. Each grows to the largest request and never shrinks. nbytes: their total.

    A large buffer takes whole pages, because nothing else could use the rest of its last page.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._written: dict[str, Any] = {}  # by put_once()
        self._buffers: dict[str, tuple[Memory, int]] = {}
        self._least: dict[str, tuple[Memory, int]] = {}
        self._use: Callable[[int], None] = lambda nbytes: None
        self._pause = self._passing = 0  # of fitting(): calls that do not ask for memory, and how many are left
        self.nbytes = 0

    def account(self, use: Callable[[int], None]) -> None:
        """See contracts.DeviceRows."""
        self._use = use
        use(self.nbytes)

    def of(self, name: str, nbytes: int) -> int:
        """Return the address of a buffer of at least nbytes, whose contents are undefined. Raises MemoryError."""
        memory, size = self._buffers.get(name, (None, 0))
        if memory is not None and size >= nbytes:
            return memory.address
        if memory is not None:
            del memory  # freed before the next one is made
            self._drop(name)
        try:
            with suppress(MemoryError):
                if size:
                    return self._make(name, nbytes + nbytes // 4)  # because the next request may be larger again
            return self._make(name, nbytes)
        except MemoryError:
            if size:
                self._restore(name, size)
            raise

    def keep_least(self) -> None:
        """Keep the present buffers permanently: if a buffer that has grown is lost, its present version replaces it."""
        self._least = dict(self._buffers)

    def _drop(self, name: str) -> None:
        memory, size = self._buffers.pop(name)
        if self._least.get(name) != (memory, size):
            self._took(-size)

    def _restore(self, name: str, size: int) -> None:
        """Make a dropped buffer again, or take its least version (keep_least) if its memory was taken meanwhile."""
        least = self._least.get(name)
        if least is not None:
            self._buffers[name] = least
        if least is None or size > least[1]:
            with suppress(MemoryError):
                self._make(name, size)

    def _make(self, name: str, nbytes: int) -> int:
        nbytes = taken_bytes(max(MIN_BYTES, nbytes))
        memory = self._queue.device.allocate(nbytes)
        self._buffers[name] = memory, nbytes
        self._took(nbytes)
        return memory.address

    def _took(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._use(nbytes)

    def sorting_workspace(self, count: int) -> Workspace:
        """Return the workspace for sorting `count` numbers."""
        nbytes = sorting_bytes(count)
        return Workspace(self.of("sorting", nbytes), nbytes)

    def parts(self, count: int, most: int | None = None, /, **row_bytes: int) -> Iterator[slice]:
        """Yield slices that cover `count` rows, each of at most `most` rows (None: all), or fewer if memory is short.

        row_bytes: bytes per row of each buffer, by the buffer's name. Raises what fitting() raises.
        """
        size = self.fitting(count if most is None else min(count, most), PITCH, **row_bytes)
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))

    def fitting(self, rows: int, unit: int, /, **row_bytes: int) -> int:
        """Make buffers for `rows` rows, or fewer if memory is short; return the number, a multiple of `unit`.

        row_bytes: as for parts(). Raises MemoryError if there is no memory for `unit` rows. After memory was refused,
        the next calls do not ask for more: 1 call, then twice as many each time. A refused allocation takes long, and
        makes CuPy and PyTorch free what they keep.
        """
        rows = wanted = max(unit, -(-rows // unit) * unit)
        held = self._rows_held(wanted, unit, row_bytes)
        if held == rows:
            return held
        if self._passing and held:
            self._passing -= 1
            return held
        refused = False
        while rows > held:
            try:
                for name, each in row_bytes.items():
                    self.of(name, each * rows)
            except MemoryError:
                if not refused:
                    refused, self._pause = True, min(2 * self._pause + 1, MAX_PAUSE)
                    self._passing = self._pause
                if rows == unit:
                    raise
                rows = max(unit, rows // 4 // unit * unit)
                held = self._rows_held(wanted, unit, row_bytes)
            else:
                held = rows
        if not refused:
            self._pause = self._passing = 0
        return held

    def _rows_held(self, rows: int, unit: int, row_bytes: dict[str, int]) -> int:
        """Return for how many rows the present buffers suffice, a multiple of `unit` and at most `rows`."""
        sizes = (self._buffers.get(name, (None, 0))[1] // each for name, each in row_bytes.items())
        return min(rows, *sizes) // unit * unit

    def put(self, name: str, array: Any) -> int:
        """Copy an array to a buffer; return its address."""
        address = self.of(name, array.nbytes)
        if array.nbytes:
            self._queue.upload(address, np.ascontiguousarray(array))
        return address

    def zeros(self, name: str, count: int) -> int:
        """Return the address of a buffer of `count` 8-byte zeros."""
        address = self.of(name, 8 * count)
        self._queue.zero(address, 8 * count)
        return address

    def put_once(self, name: str, array: Any) -> int:
        """Do what put() does, without a copy if the buffer already holds the array. REQUIRES: its only use."""
        if name not in self._written or not np.array_equal(self._written[name], array):
            self._written.pop(name, None)  # if put() fails, the buffer's contents are unknown
            self.put(name, array)
            self._written[name] = array.copy()
        return self.of(name, array.nbytes)

    def get(self, address: int, count: int, dtype: Any) -> Any:
        """Return a copy of count elements."""
        array = np.empty(count, dtype)
        if count:
            self._queue.download(array, address)
        return array

    # Rows, as columns with a pitch.

    def for_rows(self, name: str, schema: Schema, rows: int) -> tuple[int, int]:
        """Return the address of a buffer for `rows` rows, and their pitch."""
        pitch = -(-max(1, rows) // PITCH) * PITCH
        return self.of(name, pitch * RowBlock.bytes_per_row(schema)), pitch

    def put_rows(self, name: str, rows: RowBlock) -> tuple[int, int]:
        """Copy rows to a buffer; return its address, and their pitch."""
        address, pitch = self.for_rows(name, rows.schema, len(rows))
        for column, at in zip(_columns(rows), _places(address, pitch, rows.schema), strict=True):
            if len(rows):
                self._queue.upload(at, np.ascontiguousarray(column))
        return address, pitch

    def get_rows(self, address: int, pitch: int, rows: RowBlock) -> None:
        """Fill a block, whose columns are contiguous, with the first rows of a buffer."""
        for column, at in zip(_columns(rows), _places(address, pitch, rows.schema), strict=True):
            if len(rows):
                self._queue.download(column, at)


def _columns(rows: RowBlock) -> tuple[Any, ...]:
    return rows.keys, rows.scores, rows.steps, rows.words, rows.flags


def _places(address: int, pitch: int, schema: Schema) -> tuple[int, ...]:
    """Return the addresses of the columns of rows outside buckets, in the order of _columns."""
    starts = (0, 8, 16, 24, 24 + schema.row_bytes)
    return tuple(address + start * pitch for start in starts)
