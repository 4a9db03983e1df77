"""Optimizer steps on the cells of one hot table: sums of gradients, the formulas, and slots that match the embedding.

Inputs are device addresses. The kernels are those of arithmetic.cu, with the formulas that formulas.py translates. Not
thread-safe: the table's caller locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kvemb.backends.cuda import source
from kvemb.backends.cuda.cells import NO_POSITIONS, NULL, WARP, Cells
from kvemb.optimizers import Optimizer
from kvemb.optimizers.formula import Function, uses_buffers
from kvemb.optimizers.formula import read as read_formula
from kvemb.rows.hashing import Sums

# Sums of more gradients than MANY have warps of their own, each NARROW columns wide; see arithmetic.cu.
MANY, NARROW = 256, 4


class GivenSums(NamedTuple):
    """Addresses of arrays that say which gradients are summed for each cell of a step (kvemb.rows.hashing.Sums).

    first: the row of cell i, or its first one; null: row i. ends: null: no cell has a second row; else the rows of cell
    i are entries[starts[i]] to entries[ends[i] - 1]. at: positions of sums; null: i for cell i.
    """

    first: int = NULL
    entries: int = NULL
    starts: int = NULL
    ends: int = NULL
    entry_count: int = 0
    at: int = NULL


class Steps:
    """Steps on the cells of one table. prepare_*(): as in Cells, for put_groups(), step() and match()."""

    def __init__(self, cells: Cells) -> None:
        self._cells, self._schema = cells, cells.schema
        self._buffers, self._queue = cells.buffers, cells.queue

    def put_groups(self, sums: Sums) -> tuple[int, int, int]:
        """Copy the rows of each sum to a buffer, sorted by key there; return GivenSums' entries, starts and ends."""
        count, n = len(sums.first), len(sums.following)
        self.prepare_groups(count, n)
        entries = self._buffers.of("order", 8 * n)
        if count == n:
            rows, bounds = sums.first, np.arange(n + 1)
        elif sums.key_of is not None and sums.counts is not None:
            entries, rows = self._cells.ordered(self._buffers.put("key_of", sums.key_of), n), NO_POSITIONS
            bounds = np.concatenate([[0], np.cumsum(sums.counts)])
        else:
            rows, bounds = sums.grouped()
        self._queue.upload(entries, rows)
        starts = self._buffers.put("bounds", bounds)
        return entries, starts, starts + 8

    def prepare_groups(self, count: int, entries: int) -> None:
        """Allocate the buffers of put_groups() for `count` sums."""
        self._cells.order_buffers(entries)
        self._buffers.of("key_of", 8 * entries)
        self._buffers.of("bounds", 8 * (count + 1))

    def prepare_step(
        self, functions: tuple[Function, ...], optimizer: Optimizer, n: int, *, entries: int, apart: bool = False
    ) -> None:
        """Allocate the buffers of step() of n cells. entries: their gradients, 0 if each has one; apart: at is set."""
        self._step_buffers(functions, n, summing=entries > 0, apart=apart)
        self.many_buffer(entries)
        self._queue.device.load(self._step_source(functions, optimizer))
        list(self._numbers(functions, optimizer))

    def prepare_match(self, n: int, optimizer: Optimizer) -> None:
        """Allocate the buffers of match() of n cells."""
        if optimizer.match is not None and n:
            self._match_buffers(n)
            self.prepare_step((optimizer.match,), optimizer, n, entries=0)

    def step(
        self,
        functions: tuple[Function, ...],
        optimizer: Optimizer,
        cells: int,
        n: int,
        grads: int,
        sums: GivenSums,
        step: int,
        count: int,
    ) -> None:
        """Run formulas on n distinct cells; see contracts.HotTable.apply. grads (·, dim), in the slots' dtype."""
        if not n:
            return
        schema = self._schema
        sum_rows, wide_rows = self._step_buffers(functions, n, summing=bool(sums.ends), apart=bool(sums.at))
        program = self._step_source(functions, optimizer)
        if sums.ends:
            of = grads, sums.entries, sums.starts, sums.ends, sum_rows, sums.at, schema.dim
            many = self.many_buffer(sums.entry_count)
            self._queue.run(program, "sum_gradients", -(-n // WARP) * self.warps_across() * WARP, cells, n, *of, many)
            self._queue.run(program, "sum_many_gradients", self.threads_of_many(sums.entry_count), *of, many)
        self._queue.run(
            program, "step", WARP * n, *self._cells.table(), cells, n, grads, sums.first, sums.starts, sums.ends,
            sum_rows, sums.at, wide_rows, schema.dim, step, float(count), *schema.slot_columns[:-1],
            *self._numbers(functions, optimizer),
        )  # fmt: skip

    def warps_across(self, columns: int = WARP) -> int:
        """Return how many warps have a row's columns, so many each."""
        return -(-self._schema.dim // columns)

    def many_buffer(self, entries: int) -> int:
        """Return the buffer for the numbers of sums of more than MANY entries, none so far; null if none can be."""
        if entries <= MANY:
            return NULL
        address = self._buffers.of("many", 8 * (1 + entries // MANY))
        self._queue.zero(address, 8)
        return address

    def threads_of_many(self, entries: int) -> int:
        """Return how many threads sum those of more than MANY of `entries`, at most."""
        return entries // MANY * self.warps_across(NARROW) * WARP if entries > MANY else 0

    def _step_source(self, functions: tuple[Function, ...], optimizer: Optimizer) -> str:
        return source.step_source(functions, tuple(slot.name for slot in optimizer.slots), self._schema)

    def _step_buffers(self, functions: tuple[Function, ...], n: int, *, summing: bool, apart: bool) -> tuple[int, int]:
        """Return the buffers for sums, and for embeddings in the slots' dtype; null for a buffer that is not needed."""
        copies, wide = uses_buffers(functions)
        row_bytes, of = self._schema.dim * self._schema.slot_dtype.itemsize, self._buffers.of
        summed = n // 2 + 1 if apart and not copies else n
        sums = of("sums", summed * row_bytes) if copies or summing else NULL
        return sums, of("wide", n * row_bytes) if wide else NULL

    def match(self, cells: int, n: int, optimizer: Optimizer, step: int) -> None:
        """Set the slots of n cells that depend on the embedding; see contracts.HotTable."""
        if optimizer.match is not None and n:
            zeros, first = self._match_buffers(n)
            self.step((optimizer.match,), optimizer, cells, n, zeros, GivenSums(first), step, 0)

    def _match_buffers(self, n: int) -> tuple[int, int]:
        """Return the addresses of one gradient, all zeros, and of its position, 0, for each of n cells."""
        return self._buffers.zeros("gradient", self._schema.dim), self._buffers.zeros("first", n)

    def _numbers(self, functions: tuple[Function, ...], optimizer: Optimizer) -> Iterator[Any]:
        """Yield the arguments of formulas after their rows; for a table, its address and its length."""
        for place, function in enumerate(functions):
            tables = read_formula(function).tables
            for name, number in optimizer.numbers(function, self._schema.slot_dtype).items():
                if name in tables:
                    yield from (self._buffers.put_once(f"{name} {place}", number), len(number))
                else:
                    yield number
