"""The cells of one hot table, and the kernels on them, whose inputs and outputs are device addresses.

table.py handles arrays in the host's memory, arrays.py those in the device's memory; steps.py takes optimizer
steps on cells. Not thread-safe: the table's caller locks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvemb.backends.cuda import source
from kvemb.backends.cuda.device import Device, Workspace
from kvemb.backends.cuda.memory import BucketChunks, Buffers, unit_of
from kvemb.backends.cuda.queue import Queue
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.hashing import Positions
from kvemb.rows.schema import Schema

NO_POSITIONS: Positions = np.empty(0, np.int64)
NULL = 0
# Bytes of the buffer "count", in which a kernel counts up to three things.
COUNT_BYTES = 24
# Lanes that work together: on a bucket, cell or row; in find, on a key.
WARP, TILE = 32, 8
_MOVING = frozenset({"insert", "remove_cells", "clear", "split", "merge"})


class InsertResult(NamedTuple):
    """The result of insert(): how many cells were filled (fresh), rows found no room (waiting), rows were evicted
    (leaving). left, pitch: the buffer of evicted rows. left_at: the address of positions of the rows replacing them.
    """

    fresh: int
    waiting: int
    leaving: int
    left: int
    pitch: int
    left_at: int


class Cells:
    """The cells of a table of at most max_buckets buckets; there are none at first.

    value_bytes: bytes of an embedding. buffers: for the inputs and outputs of a call. moves: how often rows may have
    been inserted, removed or moved, so that a key's cell may have changed. together: see contracts.DeviceRows.together.
    """

    def __init__(self, device: Device, schema: Schema, max_buckets: int) -> None:
        self.schema, self.queue = schema, Queue(device)
        self.chunks = BucketChunks(self.queue, schema, max_buckets)
        self.buffers = Buffers(self.queue)
        self.value_bytes = schema.dim * schema.value_dtype.itemsize
        self.moves, self.together = 0, False

    def table(self, buckets: int | None = None) -> tuple[int, int, int, int]:
        """Return the first arguments of a kernel on the table. buckets: None: all."""
        chunks = self.chunks
        return chunks.address, chunks.buckets if buckets is None else buckets, chunks.shift, self.schema.row_words

    def run(self, name: str, threads: int, *arguments: Any, buckets: int | None = None) -> None:
        """Run a kernel on the table."""
        self.moves += name in _MOVING
        self.queue.run(source.table_source(), name, threads, *self.table(buckets), *arguments)

    def run_plain(self, name: str, threads: int, *arguments: Any) -> None:
        """Run one of the kernels of arrays.cu, which need no table."""
        self.queue.run(source.table_source(), name, threads, *arguments)

    def gather(self, cells: int, n: int, out: int) -> None:
        """Copy the embeddings of n cells to out (n, dim); entries < 0 are skipped."""
        self.run("gather", WARP * n, cells, n, out, self.value_bytes, self.unit(out))

    def unit(self, address: int) -> int:
        """Return how many bytes of an embedding are copied at a time to or from an array at this address."""
        return unit_of(self.value_bytes, self.schema.row_bytes, address)

    # Finding.

    def find(self, keys: int, n: int, **how: Any) -> int:
        """Do what start_find() does, and wait; return how many keys are missing.

        Their positions are in the buffer "missing", in any order.
        """
        return int(self.buffers.get(self.start_find(keys, n, **how), 1, np.int64)[0]) if n else 0

    def start_find(
        self,
        keys: int,
        n: int,
        *,
        cells: str = "cells",
        at: int = NULL,
        out: int = NULL,
        exists: int = NULL,
        rule: ScoreRule | None = None,
        now: float = 0.0,
        counts: int = NULL,
    ) -> int:
        """Begin to find n keys and to write their cells to a buffer; return the address of the number of missing keys.

        cells: the buffer's name. See the kernel for at, out, exists and counts; rule and now as in HotTable.lookup.
        """
        buffers = self.buffers
        how = -1 if rule is None or rule is ScoreRule.CUSTOM else int(rule)
        misses = buffers.zeros("count", 1)
        self.run(
            "find", TILE * n, keys, n, at, buffers.of(cells, 8 * n), out, self.value_bytes, self.unit(out), exists,
            how, float(now), counts, misses, buffers.of("missing", 8 * n),
        )  # fmt: skip
        return misses

    def missing(self, count: int) -> Positions:
        """Return the positions of the `count` missing keys, ascending."""
        if not count:
            return NO_POSITIONS
        return np.sort(self.buffers.get(self.buffers.of("missing", 8 * count), count, np.int64))

    def ordered(self, cells: int, n: int) -> int:
        """Return the address of the positions that sort cells stably."""
        order, workspace = self.order_buffers(n)
        self.queue.order(cells, n, order, workspace)
        return order

    def order_buffers(self, n: int) -> tuple[int, Workspace]:
        """Return the buffer for the positions of ordered(), and the workspace."""
        return self.buffers.of("order", 8 * n), self.buffers.sorting_workspace(n)

    def insert(
        self, given: int, pitch: int, n: int, *, by_score: bool, clean_too: bool, evicting: bool
    ) -> InsertResult:
        """Insert n rows that are in a buffer (Buffers.for_rows). See the kernel for by_score, clean_too and evicting.

        Positions of rows without room are in the buffer "missing", in any order; there are none if evicting.
        """
        counts, *left = self.start_insert(given, pitch, n, by_score=by_score, clean_too=clean_too, evicting=evicting)
        fresh, waiting, leaving = self.buffers.get(counts, 3, np.int64).tolist()
        return InsertResult(fresh, waiting, leaving, *left)

    def start_insert(
        self, given: int, pitch: int, n: int, *, by_score: bool, clean_too: bool, evicting: bool
    ) -> tuple[int, int, int, int]:
        """Begin to insert rows; return the address of InsertResult's counts, and its last three fields."""
        buffers, counts = self.buffers, self.buffers.zeros("count", 3)
        entries, left_at, (left, left_pitch), workspace = self._insert_buffers(n, evicting)
        self.run("bucket_entries", n, given, n, entries)  # keys are a buffer's first column
        self.queue.sort(entries, n, workspace)
        self.run(
            "insert", WARP * n, entries, n, given, pitch, int(by_score), int(evicting), int(clean_too),
            int(self.together), counts, counts + 8, buffers.of("missing", 8 * n), counts + 16, left, left_pitch,
            left_at,
        )  # fmt: skip
        return counts, left, left_pitch, left_at

    def _insert_buffers(self, n: int, evicting: bool) -> tuple[int, int, tuple[int, int], Workspace]:
        """Return the buffers for entries, for evicted positions and rows (with their pitch), and a workspace."""
        buffers = self.buffers
        buffers.of("missing", 8 * n)
        left = buffers.for_rows("left", self.schema, n if evicting else 0)
        return buffers.of("entries", 8 * n), buffers.of("left_at", 8 * n), left, buffers.sorting_workspace(n)

    # Before rows change: prepare_*() allocates the buffers of a change, with the same _*_buffers() that the change
    # calls, and loads kernels that may not be loaded yet. It raises MemoryError.

    def prepare_insert(self, n: int, *, evicting: bool) -> None:
        """Allocate the buffers of start_insert() of n rows."""
        self.buffers.of("count", COUNT_BYTES)
        self._insert_buffers(n, evicting)

    def prepare_change(self, n: int, *, adding: bool) -> None:
        """Allocate the buffers of assign() of n cells, and with `adding` those of add()."""
        self.order_buffers(n)
        if adding:
            self.queue.device.load(source.values_source(self.schema))

    # Embeddings of n cells; entries < 0 are skipped.

    def assign(self, cells: int, values: int, n: int, step: int) -> None:
        """Set embeddings to values (n, dim)."""
        if n:
            order = self.ordered(cells, n)
            self.run("assign", WARP * n, cells, order, n, values, self.value_bytes, self.unit(values), step)

    def add(self, cells: int, old: int, new: int, n: int, step: int) -> None:
        """Add new - old, both (n, dim)."""
        if n:
            program, order = source.values_source(self.schema), self.ordered(cells, n)
            arguments = cells, order, n, old, new, self.schema.dim, step
            self.queue.run(program, "add", WARP * n, *self.table(), *arguments)

    def pool(self, cells: int, n: int, bags: Bags, at: int, beside: int, out: int) -> None:
        """Write the pooled rows of bags of n keys to out. at, beside: addresses of a RowsBeside's fields, or null."""
        buffers, count, dim = self.buffers, bags.bag_count, self.schema.dim
        program = source.values_source(self.schema)
        weights, divisors = self.put_weights(bags)
        scales = NULL
        if np.isfinite(bags.most_norm) and n:
            scales = buffers.of("scales", 8 * n)
            clipping = cells, n, at, beside, dim, float(bags.most_norm), weights, scales
            self.queue.run(program, "clip_scales", n, *self.table(), *clipping)
        offsets = buffers.put("offsets", bags.offsets)
        arguments = cells, at, beside, dim, offsets, count, weights, divisors, scales, out
        self.queue.run(program, "pool", WARP * count, *self.table(), *arguments)

    def put_weights(self, bags: Bags) -> tuple[int, int]:
        """Copy the weights and divisors of bags to buffers; return their addresses, null for those that are all 1."""
        weights = self.buffers.put("weights", bags.weights) if len(bags.weights) else NULL
        return weights, self.buffers.put("divisors", bags.divisors) if len(bags.divisors) else NULL

    def put_beside(self, beside: RowsBeside | None) -> tuple[int, int]:
        """Copy the positions and the rows beside the table to buffers; return their addresses, null for none."""
        if beside is None:
            return NULL, NULL
        return self.buffers.put("at", beside.at), self.buffers.put("old", beside.values)
