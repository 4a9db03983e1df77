"""Kernels on the rows of a block on the CPU: copy out, set, add. Optimizer steps are in cpu_formulas.

index (n,): positions of rows in the block; entries < 0 are skipped. Slots and gradients have the same dtype, in which
steps are calculated; 16-bit values are widened to it and rounded once. What is only copied is seen as bytes and words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.backends.cpu_bags import row_gradients
from kvemb.backends.cpu_copies import copy_row
from kvemb.backends.cpu_formulas import AHEAD, run_formulas
from kvemb.backends.cpu_probe import LINE_WORDS
from kvemb.backends.intrinsics import load, prefetch, store
from kvemb.contracts import RowKernels
from kvemb.kernels.compiling import kernel
from kvemb.limits import DEFAULT, Limits
from kvemb.optimizers import Optimizer
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Positions, Sums
from kvemb.threads.parallel import cores


@kernel
def _gather(index: Any, words: Any, out: Any) -> None:
    width, nbytes = words.shape[1], out.shape[1]
    n = len(index)
    for i in range(n):
        if i + AHEAD < n and index[i + AHEAD] >= 0:
            for j in range(0, (nbytes + 7) >> 3, LINE_WORDS):
                prefetch(words, index[i + AHEAD] * width + j)
        r = index[i]
        if r >= 0:
            copy_row(out, i * nbytes, words, r * width * 8, nbytes)


@kernel
def _assign(index: Any, words: Any, given: Any, step: int, steps: Any, flags: Any) -> None:
    width, nbytes = words.shape[1], given.shape[1]
    for i in range(len(index)):
        r = index[i]
        if r >= 0:
            copy_row(words, r * width * 8, given, i * nbytes, nbytes)
            steps[r] = step
            flags[r] |= DIRTY


@kernel
def _add(index: Any, values: Any, old: Any, new: Any, dim: int, step: int, steps: Any, flags: Any) -> None:
    for i in range(len(index)):
        r = index[i]
        if r >= 0:
            for j in range(dim):
                values[r, j] = store(load(values[r, j]) + (load(new[i, j]) - load(old[i, j])), values[r, j])
            steps[r] = step
            flags[r] |= DIRTY


class CpuRows(RowKernels):
    """Rows in NumPy memory. limits: the store's; they say which batches are split over the cores."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._parallel_keys = limits.hot_parallel_keys

    def gather(self, block: RowBlock, index: Positions, out: Any) -> None:
        _gather(index, block.words, out.view(np.uint8))

    def assign(self, block: RowBlock, index: Positions, values: Any, step: int) -> None:
        _assign(index, block.words, values.view(np.uint8), step, block.steps, block.flags)

    def add(self, block: RowBlock, index: Positions, old: Any, new: Any, step: int) -> None:
        seen_old, seen_new = _seen(old, block), _seen(new, block)
        _add(index, block.values, seen_old, seen_new, block.schema.dim, step, block.steps, block.flags)

    def apply(
        self, block: RowBlock, index: Positions, optimizer: Optimizer, grads: Any, step: int, sums: Sums, count: int
    ) -> None:
        run_formulas(optimizer.formulas, optimizer, index, block, grads, step, sums, count, threads=False)

    def match(self, block: RowBlock, index: Positions, optimizer: Optimizer, step: int) -> None:
        if optimizer.match is not None:
            no_gradient = np.zeros((1, block.schema.dim), block.schema.slot_dtype)
            sums = Sums(np.zeros(len(index), np.int64), np.full(1, -1, np.int64))
            run_formulas((optimizer.match,), optimizer, index, block, no_gradient, step, sums, 0, threads=False)

    def row_gradients(self, sums: Sums, bag_of: Positions, weights: Any, grads: Any, out: Any) -> None:
        threads = len(bag_of) >= self._parallel_keys and cores() > 1
        row_gradients(sums, bag_of, weights, grads, out, threads=threads)


def _seen(array: Any, block: RowBlock) -> Any:
    """Return the array as kernels see it: 16-bit floats as integers."""
    return array.view(block.schema.kernel_dtype)
