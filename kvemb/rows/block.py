"""RowBlock: rows in memory, as columns of equal length. Hot tables, batches and memtables consist of it.

Not thread-safe; the owner's lock guards it. kvemb.rows.codec defines the bytes on disk.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.rows.schema import Schema

# Bits of `flags`. The low four live in memory only; the codec masks them off.
DIRTY = 0x01
REMOVED = 0x02
PENDING = 0x04  # belongs to a snapshot and was not yet taken by it (kvemb.tiers.snapshot)
WRITING = 0x08  # is being written for a snapshot
SNAPSHOT_FLAGS = np.uint8(PENDING | WRITING)
MEMORY_FLAGS = 0x0F

# Bytes of a cell beside its row: key, score, step of last change, flags.
CELL_OVERHEAD_BYTES = 8 + 8 + 8 + 1

# The largest memory that malloc keeps for reuse. If a block's rows take less, malloc is cheaper than mappings.
_MAPPED_BYTES = 32 << 20
_HUGE_PAGE_BYTES = 2 << 20
_INT64, _FLOAT64, _UINT8, _UINT64 = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.uint8), np.dtype(np.uint64)


def _mapped(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return zeroed memory that is page-aligned and committed only as it is touched."""
    nbytes = count * dtype.itemsize
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, count)


class RowBlock:
    """`length` rows of one schema.

    keys int64 (length,), scores float64, steps int64 (step of last change), flags uint8, words uint64
    (length, row_words). `values` (length, ·) and `slots` (length, ·) are the same memory as `words`, seen in the
    value's and the slots' dtype; a row's embedding is its first `dim` values, its slots begin at schema.slot_column.
    NumPy kernels have no 16-bit floats, so float16 shows as uint16 and bfloat16 as int16.
    """

    def __init__(self, schema: Schema, length: int) -> None:
        self.schema, self.length = schema, length
        zeros = np.zeros if 8 * schema.row_words * length < _MAPPED_BYTES else _mapped
        self.keys: npt.NDArray[np.int64] = zeros(length, _INT64)
        self.scores: npt.NDArray[np.float64] = zeros(length, _FLOAT64)
        self.steps: npt.NDArray[np.int64] = zeros(length, _INT64)
        self.flags: npt.NDArray[np.uint8] = zeros(length, _UINT8)
        words = zeros(length * schema.row_words, _UINT64).reshape(length, schema.row_words)
        self.words: npt.NDArray[np.uint64] = words
        self.values: npt.NDArray[Any] = words.view(schema.kernel_dtype)
        self.slots: npt.NDArray[Any] = words.view(schema.slot_dtype)

    def __len__(self) -> int:
        return self.length

    @staticmethod
    def bytes_per_row(schema: Schema) -> int:
        """Return the bytes that one row takes in a block."""
        return schema.row_bytes + CELL_OVERHEAD_BYTES

    @classmethod
    def of(cls, schema: Schema, keys: Any, scores: Any, steps: Any, flags: Any, words: Any) -> RowBlock:
        """Return a block that uses the memory of these columns, each contiguous, in its dtype and shape."""
        block = object.__new__(RowBlock)
        block.schema, block.length = schema, len(keys)
        block.keys, block.scores, block.steps, block.flags, block.words = keys, scores, steps, flags, words
        block.values, block.slots = words.view(schema.kernel_dtype), words.view(schema.slot_dtype)
        return block

    @classmethod
    def with_keys(cls, schema: Schema, keys: npt.NDArray[np.int64]) -> RowBlock:
        """Return a new block of rows that are zeros but for their keys."""
        block = cls(schema, len(keys))
        block.keys[:] = keys
        return block

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns of a row: keys, scores, steps, flags and words, as kernels take them."""
        return self.keys, self.scores, self.steps, self.flags, self.words

    def part(self, start: int, stop: int) -> RowBlock:
        """Return rows start to stop as a view of this block's memory."""
        at = slice(start, stop)
        return self.of(self.schema, self.keys[at], self.scores[at], self.steps[at], self.flags[at], self.words[at])

    @staticmethod
    def joined(blocks: list[RowBlock], schema: Schema) -> RowBlock:
        """Return a new block of the rows of all blocks, in order; there may be none."""
        joined, at = RowBlock(schema, sum(map(len, blocks))), 0
        for block in blocks:
            joined.put(slice(at, at + len(block)), block)
            at += len(block)
        return joined

    def embeddings(self) -> npt.NDArray[Any]:
        """Return a copy of the embeddings (length, dim) in the value dtype."""
        return self.values[:, : self.schema.dim].copy().view(self.schema.value_dtype)

    def named_embeddings(self) -> npt.NDArray[Any]:
        """Return a copy of the embeddings with the names behind them (length, schema.width), in the value dtype."""
        return self.values[:, : self.schema.width].copy().view(self.schema.value_dtype)

    def names(self) -> npt.NDArray[np.uint8]:
        """Return a view of the names (length, name_bytes): kvemb.rows.names."""
        begin = self.schema.dim * self.schema.value_dtype.itemsize
        return self.words.view(np.uint8)[:, begin : begin + self.schema.name_bytes]

    def slot(self, index: int) -> npt.NDArray[Any]:
        """Return a view of the index-th slot of every row (length, width of the slot)."""
        columns = self.schema.slot_columns
        return self.slots[:, columns[index] : columns[index + 1]]

    def slots_by_name(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of every slot of every row by name, each (length, width of the slot)."""
        return {slot.name: self.slot(index).copy() for index, slot in enumerate(self.schema.slots)}

    def select(self, index: Any) -> RowBlock:
        """Return a new block of the rows at index (positions, boolean mask or slice), in that order."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(self.length))
        elif isinstance(index, list):
            index = np.array(index, np.int64)
        elif index.dtype == np.bool_:
            index = index.nonzero()[0]
        # Each column is copied once, to memory that is not zeroed; take() is twice as fast as indexing.
        keys, scores, steps = self.keys.take(index), self.scores.take(index), self.steps.take(index)
        return self.of(self.schema, keys, scores, steps, self.flags.take(index), self.words.take(index, axis=0))

    def put(self, index: Any, rows: RowBlock) -> None:
        """Overwrite the rows at index (positions or slice) with rows, keys included."""
        self.keys[index], self.words[index] = rows.keys, rows.words
        self.scores[index], self.steps[index], self.flags[index] = rows.scores, rows.steps, rows.flags


class ReservedBlock(RowBlock):
    """A block whose memory is committed only for rows that were written and not yet released. Raises MemoryError.

    huge_pages: memory of a large column is committed in pages of 2 MiB once the rows in use take more than one of them.
    Before, it is committed in small pages: of a store with hundreds of small tables, each would take 2 MiB a column.
    """

    def __init__(self, schema: Schema, length: int, *, huge_pages: bool = False) -> None:
        self.schema, self.length = schema, length
        self._maps: list[tuple[mmap.mmap, int]] = []
        self._huge_pages = huge_pages
        self._with_small_pages: list[tuple[mmap.mmap, int]] = []  # the large columns among them
        self.keys, self.scores = self._reserve(length, np.int64), self._reserve(length, np.float64)
        self.steps, self.flags = self._reserve(length, np.int64), self._reserve(length, np.uint8)
        self.words = self._reserve(length * schema.row_words, np.uint64).reshape(length, schema.row_words)
        self.values, self.slots = self.words.view(schema.kernel_dtype), self.words.view(schema.slot_dtype)

    def _reserve(self, count: int, dtype: Any) -> npt.NDArray[Any]:
        nbytes = max(1, count * np.dtype(dtype).itemsize)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            memory = mmap.mmap(-1, nbytes, flags=flags)
        except OSError as error:
            raise MemoryError(
                f"there is no address space for {nbytes:,} bytes of a column of rows; use a smaller memory_budget"
            ) from error
        self._maps.append((memory, nbytes // max(1, self.length)))
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            if self._huge_pages and nbytes >= _MAPPED_BYTES:
                self._with_small_pages.append(self._maps[-1])
        return np.frombuffer(memory, dtype, count)

    def another_column(self, dtype: Any) -> npt.NDArray[Any]:
        """Return an additional zeroed column (length,), whose memory release() also gives back."""
        return self._reserve(self.length, dtype)

    def use(self, rows: int) -> None:
        """Tell how many rows, from the first, are in use from now on. Not needed without huge_pages."""
        for column in list(self._with_small_pages):
            memory, row_bytes = column
            if rows * row_bytes > _HUGE_PAGE_BYTES:
                memory.madvise(mmap.MADV_HUGEPAGE)  # in time, the system also joins the small pages at its beginning
                self._with_small_pages.remove(column)

    def release(self, start: int, stop: int) -> None:
        """Give back the memory of rows start to stop, in whole pages. Their contents are then undefined."""
        for memory, row_bytes in self._maps:
            first = -(-start * row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            last = stop * row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first:
                memory.madvise(mmap.MADV_DONTNEED, first, last - first)
