"""The hot table on a GPU: buckets of 128 cells in device memory, with eviction by lowest score.

Arguments and results are arrays in the host's memory; only the cells, and buffers for a call, are on the device.
cells.cu describes the layout, the files with kernels what a warp does. Not thread-safe: the caller holds the variable's
lock. Longer than 300 lines: each verb of the contract is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kvemb.backends.cuda import formulas, source
from kvemb.backends.cuda.device import Device, open_device
from kvemb.backends.cuda.memory import CELLS, Chunks, Rooms, bytes_per_cell, chunk_shift
from kvemb.contracts import Memory
from kvemb.limits import DEFAULT, Limits
from kvemb.optimizers import Optimizer
from kvemb.optimizers.formula import Function, read
from kvemb.restrict import ScoreRule, Scores
from kvemb.rows.bags import Bags, Beside
from kvemb.rows.block import DIRTY, PENDING, SNAPSHOT_FLAGS, WRITING, RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums
from kvemb.rows.schema import Schema

_logger = logging.getLogger("kvemb")

NO_POSITIONS: Positions = np.empty(0, np.int64)
NULL = 0
WARP = 32
# A step of growth adds 1/STEP of the table's buckets, and at least a chunk.
STEP = 32
# The share of a device's memory for one store's cells, unless device_memory is given. The rest is for the arrays of
# calls, and for other programs.
SHARE = 0.75
# A call on very many rows or buckets copies this many at a time, to bound its memory on the device.
PART_ROWS, PART_BUCKETS = 65_536, 8192
_DIGESTS, _FLAGS = 0, 1
_ALL_FLAGS = 0xFF


class CudaTable:
    """contracts.HotTable in a GPU's memory. open_device: where devices come from, by name."""

    cells_per_bucket = CELLS
    open_device: Callable[[str], Device] = staticmethod(open_device)

    def __init__(
        self,
        schema: Schema,
        capacity_rows: int,
        max_capacity_rows: int,
        limits: Limits = DEFAULT,
        device: str | None = None,
    ) -> None:
        self._schema, self._device = schema, type(self).open_device(device or "gpu:0")
        first = max(1, -(-capacity_rows // CELLS))
        self._chunks = Chunks(self._device, schema, max(first, max_capacity_rows // CELLS))
        self._rooms = Rooms(self._device)
        self._value_bytes = schema.dim * schema.value_dtype.itemsize
        self._unit = next(unit for unit in (16, 8, 4, 2, 1) if self._fits(unit))
        self.size = 0
        self._enlarge(self._chunks.rounded(first))

    def _fits(self, unit: int) -> bool:
        """Whether embeddings may be copied by so many bytes at a time."""
        return self._value_bytes % unit == 0 and self._schema.row_bytes % unit == 0

    @classmethod
    def memory(cls, device: str) -> Memory:
        """See contracts.HotTable."""
        return Memory(device, int(cls.open_device(device).memory_bytes() * SHARE))

    @staticmethod
    def bytes_per_cell(schema: Schema) -> int:
        """See contracts.HotTable."""
        return bytes_per_cell(schema)

    @staticmethod
    def first_rows(rows: int, most_rows: int) -> int:
        """See contracts.HotTable."""
        chunk = CELLS << chunk_shift(most_rows // CELLS)
        return min(-(-rows // chunk) * chunk, max(rows, most_rows))

    @property
    def schema(self) -> Schema:
        """See contracts.HotTable."""
        return self._schema

    @property
    def capacity_rows(self) -> int:
        """See contracts.HotTable."""
        return self._chunks.buckets * CELLS

    @property
    def max_capacity_rows(self) -> int:
        """See contracts.HotTable."""
        return self._chunks.most_buckets * CELLS

    @property
    def nbytes(self) -> int:
        """See contracts.HotTable."""
        return self.capacity_rows * bytes_per_cell(self._schema)

    @property
    def step_rows(self) -> int:
        """See contracts.HotTable."""
        buckets = self._chunks.buckets
        return (self._chunks.rounded(buckets + max(1, buckets // STEP)) - buckets) * CELLS

    # By key.

    def find(self, keys: Keys) -> Positions:
        """See contracts.HotTable."""
        self._find(keys)
        found: Positions = self._rooms.get(self._rooms.of("cells", 8 * len(keys)), len(keys), np.int64)
        return found

    def _find(
        self, keys: Keys, at: int = NULL, out: int = NULL, rule: ScoreRule | None = None, now: float = 0.0
    ) -> Positions:
        """Find keys, whose cells are then in the room "cells". Returns the positions of those that are not there."""
        rooms, n = self._rooms, len(keys)
        if not n:
            return NO_POSITIONS
        how = -1 if rule is None or rule is ScoreRule.CUSTOM else int(rule)
        misses, missing = rooms.zeros("count", 1), rooms.of("missing", 8 * n)
        self._run(
            "find", WARP * n, rooms.put("keys", keys), n, at, rooms.of("cells", 8 * n), out, self._value_bytes,
            self._unit, how, float(now), misses, missing,
        )  # fmt: skip
        (count,) = rooms.get(misses, 1, np.int64)
        return np.sort(rooms.get(missing, int(count), np.int64))

    def lookup(self, keys: Keys, out: Any, rule: ScoreRule | None, now: float) -> Positions:
        """See contracts.HotTable."""
        found = self._rooms.of("out", self._value_bytes * len(keys))
        missing = self._find(keys, out=found, rule=rule, now=now)
        self._take_out(found, out, np.delete(np.arange(len(keys)), missing) if len(missing) else None)
        return missing

    def _take_out(self, address: int, out: Any, chosen: Positions | None) -> None:
        """Copy embeddings to out (n, dim), or only the chosen ones."""
        if not out.size:
            return
        if chosen is None and out.flags.c_contiguous:
            self._device.download(out, address)
            return
        rows = np.empty(out.shape, out.dtype)
        self._device.download(rows, address)
        wanted = slice(None) if chosen is None else chosen
        out[wanted] = rows[wanted]

    def pool(
        self, keys: Keys, bags: Bags, beside: Beside | None, out: Any, rule: ScoreRule | None, now: float
    ) -> Positions:
        """See contracts.HotTable."""
        rooms, n, count = self._rooms, len(keys), bags.bag_count
        at, values = (NULL, NULL) if beside is None else (rooms.put("at", beside.at), rooms.put("old", beside.values))
        missing = self._find(keys, at=at, rule=rule, now=now)
        cells = rooms.of("cells", 8 * n)
        weights, divisors = (
            rooms.put(name, each) if len(each) else NULL
            for name, each in (("weights", bags.weights), ("divisors", bags.divisors))
        )
        program = self._device.load(source.values_source(self._schema))
        scales, dim = NULL, self._schema.dim
        if np.isfinite(bags.most_norm) and n:
            scales = rooms.of("scales", 8 * n)
            arguments = cells, n, at, values, dim, float(bags.most_norm), weights, scales
            program("clip_scales", n, *self._table(), *arguments)
        pooled, offsets = rooms.of("out", self._value_bytes * count), rooms.put("offsets", bags.offsets)
        if count:
            arguments_of_pool = cells, at, values, dim, offsets, count, weights, divisors, scales, pooled
            program("pool", WARP * count, *self._table(), *arguments_of_pool)
        self._take_out(pooled, out, None)
        return missing

    def upsert(self, keys: Keys, values: Any, step: int) -> Positions:
        """See contracts.HotTable."""
        missing = self._find(keys)
        self._assign(self._rooms.of("cells", 8 * len(keys)), values, step)
        return missing

    def insert(
        self,
        rows: RowBlock,
        *,
        by_score: bool = False,
        reserve: Callable[[int], bool] | None = None,
        clean_too: bool = False,
    ) -> RowBlock:
        """See contracts.HotTable. Grows when the bucket of a key is full. Evicted rows are in the order of the rows
        that replace them. If the device has no memory left although the budget has, rows are evicted instead.
        """
        growing = reserve is not None and self.step_rows > 0
        pending, left = self._insert(rows, by_score, clean_too, evicting=not growing)
        while len(pending):
            rows = rows.select(pending)
            # No growth if few cells are in use: keys that share a few buckets find no room in a table of any size.
            growing = reserve is not None and self.step_rows > 0 and 2 * self.size > self.capacity_rows
            growing = growing and reserve is not None and reserve(self.step_rows) and self._grown()
            pending, left = self._insert(rows, by_score, clean_too, evicting=not growing)
        return left

    def _grown(self) -> bool:
        """Grow. If the device has no memory left, log one warning and keep this size from now on."""
        try:
            self.grow()
        except MemoryError as error:
            self._chunks.most_buckets = self._chunks.buckets
            _logger.warning(
                "a hot table stays at %d rows: %s; open the store with a smaller device_memory",
                self.capacity_rows,
                error,
            )
            return False
        return True

    def _insert(self, rows: RowBlock, by_score: bool, clean_too: bool, *, evicting: bool) -> tuple[Positions, RowBlock]:
        """Insert rows. Returns the positions of rows without room (none if evicting), and the rows evicted."""
        rooms, n = self._rooms, len(rows)
        if not n:
            return NO_POSITIONS, RowBlock(self._schema, 0)
        given, pitch = rooms.put_rows("rows", rows)
        numbers, order = rooms.of("numbers", 8 * n), rooms.of("order", 8 * n)
        left, left_pitch = rooms.for_rows("left", self._schema, n if evicting else 0)
        pending, left_at = rooms.of("missing", 8 * n), rooms.of("left_at", 8 * n)
        counts = rooms.zeros("count", 3)
        self._run("bucket_numbers", n, rooms.put("keys", rows.keys), n, numbers)
        self._device.order(numbers, n, order)
        self._run(
            "insert", WARP * n, order, numbers, n, given, pitch, int(by_score), int(evicting),
            int(clean_too), counts, counts + 8, pending, counts + 16, left, left_pitch, left_at,
        )  # fmt: skip
        fresh, waiting, leaving = rooms.get(counts, 3, np.int64).tolist()
        self.size += fresh
        return np.sort(rooms.get(pending, waiting, np.int64)), self._take_left(leaving, left, left_pitch, left_at)

    def _take_left(self, count: int, left: int, pitch: int, left_at: int) -> RowBlock:
        """Return the rows that left, in the order of what they left for."""
        rows, at = RowBlock(self._schema, count), self._rooms.get(left_at, count, np.int64)
        self._rooms.get_rows(left, pitch, rows)
        return rows.select(np.argsort(at))

    def keys(self) -> Keys:
        """See contracts.HotTable."""
        return self._keys_of(self.occupied())

    def _keys_of(self, cells: Positions) -> Keys:
        keys: Keys = self._column(cells, np.int64, 0)
        return keys

    def sample(self, at: float, count: int) -> tuple[Keys, Scores]:
        """See contracts.HotTable. A run of cells, as the hash has mixed the keys."""
        count = min(count, self.capacity_rows)
        start = int(at * (self.capacity_rows - count))
        first = start // CELLS
        used = self._bytes(_DIGESTS, first, -(-(start + count) // CELLS))
        cells = start + np.flatnonzero(used[start - first * CELLS :][:count])
        return self._keys_of(cells), self.scores(cells)

    # By cell.

    def occupied(self) -> Positions:
        """See contracts.HotTable."""
        parts = [start * CELLS + np.flatnonzero(part) for start, part in self._all_bytes(_DIGESTS)]
        return np.concatenate(parts)

    def read(self, cells: Positions) -> RowBlock:
        """See contracts.HotTable."""
        rooms, rows = self._rooms, RowBlock(self._schema, len(cells))
        for start in range(0, len(cells), PART_ROWS):
            stop = min(start + PART_ROWS, len(cells))
            room, pitch = rooms.for_rows("rows", self._schema, stop - start)
            n = stop - start
            self._run("read_rows", WARP * n, rooms.put("cells", cells[start:stop]), n, room, pitch)
            rooms.get_rows(room, pitch, rows.part(start, stop))
        return rows

    def put(self, cells: Positions, rows: RowBlock) -> None:
        """See contracts.HotTable."""
        if n := len(cells):
            given = self._rooms.put_rows("rows", rows)
            self._run("put_rows", WARP * n, self._rooms.put("cells", cells), n, *given)

    def gather(self, cells: Positions, out: Any) -> None:
        """See contracts.HotTable."""
        if n := len(cells):
            found = self._rooms.of("out", self._value_bytes * n)
            self._run("gather", WARP * n, self._rooms.put("cells", cells), n, found, self._value_bytes, self._unit)
            chosen = np.flatnonzero(cells >= 0)
            self._take_out(found, out, None if len(chosen) == n else chosen)

    def assign(self, cells: Positions, values: Any, step: int) -> None:
        """See contracts.HotTable."""
        self._assign(self._rooms.put("cells", cells), values, step)

    def _assign(self, cells: int, values: Any, step: int) -> None:
        if n := len(values):
            given = self._rooms.put("values", values)
            self._run("assign", WARP * n, cells, self._ordered(cells, n), n, given, self._value_bytes, self._unit, step)

    def _ordered(self, cells: int, n: int) -> int:
        """Return the address of the positions that sort cells, stably."""
        order = self._rooms.of("order", 8 * n)
        self._device.order(cells, n, order)
        return order

    def add(self, cells: Positions, old: Any, new: Any, step: int) -> None:
        """See contracts.HotTable."""
        if n := len(cells):
            rooms, dim = self._rooms, self._schema.dim
            at = rooms.put("cells", cells)
            program = self._device.load(source.values_source(self._schema))
            arguments = at, self._ordered(at, n), n, rooms.put("old", old), rooms.put("values", new), dim, step
            program("add", WARP * n, *self._table(), *arguments)

    def apply(
        self,
        cells: Positions,
        optimizer: Optimizer,
        grads: Any,
        step: int,
        sums: Sums | None = None,
        count: int = 0,
    ) -> None:
        """See contracts.HotTable."""
        self._step(optimizer.formulas, optimizer, cells, grads, step, sums, count)

    def match(self, cells: Positions, optimizer: Optimizer, step: int) -> None:
        """See contracts.HotTable."""
        if optimizer.match is not None:
            no_gradient = np.zeros((1, self._schema.dim), self._schema.slot_dtype)
            sums = Sums(np.zeros(len(cells), np.int64), np.full(1, -1, np.int64))
            self._step((optimizer.match,), optimizer, cells, no_gradient, step, sums, 0)

    def _step(
        self,
        functions: tuple[Function, ...],
        optimizer: Optimizer,
        cells: Positions,
        grads: Any,
        step: int,
        sums: Sums | None,
        count: int,
    ) -> None:
        n, rooms, schema = len(cells), self._rooms, self._schema
        if not n:
            return
        slots = tuple(slot.name for slot in optimizer.slots)
        copies, wide = formulas.uses_rooms(functions)
        summed = sums is not None and bool((sums.following >= 0).any())
        row_bytes = schema.dim * schema.slot_dtype.itemsize
        program = self._device.load(source.step_source(functions, slots, schema))
        program(
            "step", WARP * n, *self._table(), rooms.put("cells", cells), n, rooms.put("values", grads),
            NULL if sums is None else rooms.put("first", sums.first),
            rooms.put("following", sums.following) if sums is not None and summed else NULL,
            rooms.of("sums", n * row_bytes) if copies or summed else NULL,
            rooms.of("wide", n * row_bytes) if wide else NULL,
            schema.dim, step, float(count), *schema.slot_columns[:-1], *self._numbers(functions, optimizer),
        )  # fmt: skip

    def _numbers(self, functions: tuple[Function, ...], optimizer: Optimizer) -> Iterator[Any]:
        """Yield what formulas take after their rows; of a table, its address and its length."""
        for place, function in enumerate(functions):
            tables = read(function).tables
            for name, number in optimizer.numbers(function, self._schema.slot_dtype).items():
                if name in tables:
                    yield from (self._rooms.put(f"{name} {place}", number), len(number))
                else:
                    yield number

    def scores(self, cells: Positions) -> Scores:
        """See contracts.HotTable."""
        scores: Scores = self._column(cells, np.float64, 1)
        return scores

    def _flags_of(self, cells: Positions) -> Any:
        return self._column(cells, np.uint8, 2)

    def _column(self, cells: Positions, dtype: Any, number: int) -> Any:
        """Return the keys (0), scores (1) or flags (2) of cells, which are all in use."""
        n = len(cells)
        outputs = [NULL, NULL, NULL]
        outputs[number] = self._rooms.of("out", n * np.dtype(dtype).itemsize)
        if n:
            self._run("read_columns", n, self._rooms.put("cells", cells), n, *outputs)
        return self._rooms.get(outputs[number], n, dtype)

    def set_scores(self, cells: Positions, scores: Scores) -> None:
        """See contracts.HotTable."""
        if n := len(cells):
            self._run("put_scores", n, self._rooms.put("cells", cells), n, self._rooms.put("values", scores))

    def remove(self, cells: Positions) -> None:
        """See contracts.HotTable."""
        cells = np.unique(cells[cells >= 0])
        if n := len(cells):
            used = self._rooms.zeros("count", 1)
            self._run("remove_cells", n, self._rooms.put("cells", cells), n, used)
            self.size -= int(self._rooms.get(used, 1, np.int64)[0])

    def clear(self) -> None:
        """See contracts.HotTable."""
        self._run("clear", self.capacity_rows, 0)
        self.size = 0

    def grow(self) -> None:
        """See contracts.HotTable."""
        if not self.step_rows:
            raise ValueError(f"a table of {self.capacity_rows} cells cannot grow past {self.max_capacity_rows}")
        before, after = self._chunks.buckets, (self.capacity_rows + self.step_rows) // CELLS
        self._enlarge(after)
        while before < after:  # level by level: in a launch, no bucket is split that is itself new
            level = min(after, 2 << before.bit_length() - 1)
            self._run("split", WARP * (level - before), before, buckets=level)
            before = level

    def _enlarge(self, buckets: int) -> None:
        """Grow to this number of buckets; the new ones are empty. On MemoryError nothing has changed."""
        before = self._chunks.buckets
        self._chunks.resize(buckets)
        self._run("clear", (buckets - before) * CELLS, before)

    def shrink(self, cells: int, least_rows: int) -> RowBlock:
        """See contracts.HotTable."""
        chunks, rooms = self._chunks, self._rooms
        floor = chunks.rounded(max(1, -(-least_rows // CELLS)))
        wanted = max(0, chunks.buckets - -(-cells // CELLS)) >> chunks.shift << chunks.shift
        least = min(max(wanted, floor), chunks.buckets)
        left, count, buckets = RowBlock(self._schema, (chunks.buckets - least) * CELLS), 0, chunks.buckets
        while buckets > least:  # level by level, as in grow()
            last = max(least, 1 << (buckets - 1).bit_length() - 1, buckets - PART_ROWS // CELLS)
            most = (buckets - last) * CELLS
            room, pitch = rooms.for_rows("left", self._schema, most)
            counts, left_at = rooms.zeros("count", 2), rooms.of("left_at", 8 * most)
            self._run("merge", WARP * (buckets - last), last, counts, counts + 8, room, pitch, left_at, buckets=buckets)
            gone, leaving = rooms.get(counts, 2, np.int64).tolist()
            left.put(slice(count, count + leaving), self._take_left(leaving, room, pitch, left_at))
            count, buckets, self.size = count + leaving, last, self.size - gone
        chunks.resize(least)
        return left.part(0, count)

    # Dirty rows, and the rows marked by a snapshot.

    def dirty_batches(self, limit: int) -> Iterator[tuple[Positions, RowBlock]]:
        """See contracts.HotTable."""
        for start, part in self._all_bytes(_FLAGS):
            dirty = start * CELLS + np.flatnonzero(part & DIRTY)
            for at in range(0, len(dirty), limit):
                cells = dirty[at : at + limit]
                cells = cells[self._flags_of(cells) & DIRTY != 0]  # what was taken since is clean
                if len(cells):
                    yield cells, self.read(cells)

    def mark_clean(self, cells: Positions) -> None:
        """See contracts.HotTable."""
        self._change_flags(cells, DIRTY, keep=~DIRTY)

    def mark_dirty_pending(self) -> Keys:
        """See contracts.HotTable."""
        parts = [start * CELLS + np.flatnonzero(part & DIRTY) for start, part in self._all_bytes(_FLAGS)]
        keys = self._keys_of(np.concatenate(parts))
        self._run("change_all_flags", self.capacity_rows, DIRTY, _ALL_FLAGS, PENDING)
        return keys

    def release_pending(self, cells: Positions) -> RowBlock:
        """See contracts.HotTable."""
        cells = np.unique(cells[cells >= 0])
        pending = self.read(cells[self._flags_of(cells) & PENDING != 0])
        self._change_flags(cells, int(SNAPSHOT_FLAGS), keep=~int(SNAPSHOT_FLAGS))
        return pending

    def take_pending(self, cells: Positions) -> tuple[Positions, RowBlock]:
        """See contracts.HotTable."""
        hot = np.flatnonzero(cells >= 0)
        positions = hot[self._flags_of(cells[hot]) & PENDING != 0]
        taken = self.read(cells[positions])
        self._change_flags(cells[positions], PENDING, keep=~PENDING, more=WRITING)
        return positions, taken

    def mark_written(self, cells: Positions) -> None:
        """See contracts.HotTable."""
        self._change_flags(cells[cells >= 0], WRITING, keep=~(WRITING | DIRTY))

    def release_all(self) -> None:
        """See contracts.HotTable."""
        marks = int(SNAPSHOT_FLAGS)
        self._run("change_all_flags", self.capacity_rows, marks, _ALL_FLAGS & ~marks, 0)

    def _change_flags(self, cells: Positions, where: int, *, keep: int, more: int = 0) -> None:
        """Flags of cells that have one of the bits `where` keep the bits `keep` and get the bits `more`."""
        if n := len(cells):
            self._run("change_flags", n, self._rooms.put("cells", cells), n, where, keep & _ALL_FLAGS, more)

    def _all_bytes(self, column: int) -> Iterator[tuple[int, Any]]:
        """Yield the digests or the flags of all cells in parts, each with the bucket that it begins with."""
        start = 0
        while start < self._chunks.buckets:
            stop = min(start + PART_BUCKETS, self._chunks.buckets)
            yield start, self._bytes(column, start, stop)
            start = stop

    def _bytes(self, column: int, start: int, stop: int) -> Any:
        count = (stop - start) * CELLS
        room = self._rooms.of("out", count)
        if count:
            self._run("read_bytes", count, start, stop - start, column, room)
        return self._rooms.get(room, count, np.uint8)

    # Kernels.

    def _table(self, buckets: int | None = None) -> tuple[int, int, int, int]:
        """What a kernel is given first."""
        chunks = self._chunks
        return chunks.address, chunks.buckets if buckets is None else buckets, chunks.shift, self._schema.row_words

    def _run(self, name: str, threads: int, *arguments: Any, buckets: int | None = None) -> None:
        self._device.load(source.table_source())(name, threads, *self._table(buckets), *arguments)
