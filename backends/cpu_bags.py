"""Kernels for bags on the CPU: summing rows of a hot table as they are found, and the gradients of the rows.

A bag is summed by one thread, in the order of its keys, so the result's bits depend neither on the threads nor on where
rows are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvemb.backends.cpu_probe import (
    FAR,
    LAST_USE,
    NEAR,
    RING,
    cell_of,
    first_bucket,
    likely_cell,
    rings,
    rings_of_parts,
)
from kvemb.backends.cpu_threads import even_bounds, in_parts, joined_parts, part_count, run_parts
from kvemb.backends.intrinsics import LINE_BYTES, atomic_add, item_bytes, load, prefetch, store
from kvemb.kernels.compiling import inlined, kernel
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hash_kernels import mix
from kvemb.rows.hashing import Keys, Positions, Sums

BESIDE = -2  # in the ring of cells: the row is in a buffer beside the table


@inlined
def _add(total: Any, row: Any, dim: Any, weight: Any, weighted: Any, most_norm: Any) -> None:
    """Add a row, clipped and weighted, to total."""
    if most_norm < math.inf:
        squares = 0.0
        for j in range(dim):
            squares += np.float64(load(row[j])) * np.float64(load(row[j]))
        norm = math.sqrt(squares)
        if norm > most_norm:
            scale = most_norm / norm * np.float64(weight)  # in float64, then rounded once
            for j in range(dim):
                total[j] += scale * load(row[j])
            return
    if weighted:
        for j in range(dim):
            total[j] += weight * load(row[j])
    else:
        for j in range(dim):
            total[j] += load(row[j])


@kernel
def _pool(
    wanted: Any,
    bags: Any,
    begin: int,
    end: int,
    beside: Any,
    cells: Any,
    uses: Any,
    scratch: Any,
    out: Any,
    missing: Any,
) -> int:
    """Find the keys of bags begin to end, sum their rows into out (b, dim), and record the uses.

    bags, beside: the fields of Bags and of RowsBeside, whose `at` is empty if no row is beside the table. cells: how
    many buckets there are, and the table's columns. uses: the rule (cpu_probe's numbers), the time, and whether other
    threads work on other bags. scratch: the rings of the pipeline, which is that of lookup, and the sum of one bag
    (dim,). Plain tuples, because each named one would add half a microsecond to a call.

    Writes the positions of keys that are not found to missing[offsets[begin]:], and returns their number; the rows of
    out for their bags are not set.
    """
    offsets, weights, divisors, most_norm = bags
    at, rows_beside = beside
    buckets, tags, keys, values, scores, flags = cells
    rule, now, shared = uses
    hashes, places, total = scratch
    dim = out.shape[1]
    width = values.shape[1]
    line = LINE_BYTES // item_bytes(values)
    start, stop = offsets[begin], offsets[end]
    has_beside, weighted, divided = len(at) > 0, len(weights) > 0, len(divisors) > 0
    absent = 0
    bag, complete = begin, True
    total[:] = 1
    weight = total[0]  # 1, of the dtype of the sums
    total[:] = 0
    for t in range(start, stop + FAR + NEAR + 1):
        if t < stop and not (has_beside and at[t] >= 0):
            h = mix(wanted[t])
            hashes[t & RING - 1] = h
            prefetch(tags, 2 * first_bucket(h, buckets))
        i = t - FAR
        if i >= start and i < stop:
            if has_beside and at[i] >= 0:
                places[i & RING - 1] = BESIDE
            else:
                c = likely_cell(hashes[i & RING - 1], buckets, tags)
                places[i & RING - 1] = c
                if c >= 0:
                    prefetch(keys, c)
                    for j in range(0, dim, line):
                        prefetch(values, c * width + j)
                    if rule >= 0:
                        prefetch(scores, c)
                        prefetch(flags, c)
        i = t - FAR - NEAR
        if i < start:
            continue
        while bag < end and i >= offsets[bag + 1]:
            if complete:
                _close(out, bag, total, dim, divisors, divided)
            total[:] = 0
            bag += 1
            complete = True
        if i == stop:
            break
        c = places[i & RING - 1]
        if c >= 0 and keys[c] != wanted[i]:
            c = cell_of(wanted[i], hashes[i & RING - 1], buckets, tags, keys)
        if c >= 0 and rule >= 0:
            if rule == LAST_USE:
                scores[c] = max(scores[c], now)
            elif shared:
                atomic_add(scores, c, 1.0)
            else:
                scores[c] += 1.0
            flags[c] |= DIRTY
        source = values
        if c == BESIDE:
            source, c = rows_beside, at[i]
        if c < 0:
            missing[start + absent] = i
            absent += 1
            complete = False
        if complete:
            if weighted:
                weight = weights[i]
            _add(total, source[c], dim, weight, weighted, most_norm)
    return absent


@in_parts
def _pool_in_parts(number: Any, arguments: Any) -> None:
    """Pool the bags of a part, and set absent[number] to the number of their missing keys."""
    wanted, bags, shares, beside, cells, uses, scratch, out, missing, absent = arguments
    own = scratch[0][number], scratch[1][number], scratch[2][number]
    absent[number] = _pool(wanted, bags, shares[number], shares[number + 1], beside, cells, uses, own, out, missing)


@inlined
def _close(out: Any, bag: Any, total: Any, dim: Any, divisors: Any, divided: Any) -> None:
    """Write a bag's pooled row to out."""
    if divided:
        for j in range(dim):
            total[j] = total[j] / divisors[bag] if divisors[bag] != 0 else 0
    for j in range(dim):
        out[bag, j] = store(total[j], out[bag, j])


def pool(
    wanted: Keys,
    bags: Bags,
    beside: RowsBeside | None,
    out: Any,
    rule: int,
    now: float,
    rows: RowBlock,
    buckets: int,
    tags: Any,
    threads: bool,
) -> Positions:
    """See contracts.HotTable.pool. rows: the table's columns. threads: keys are split over the cores."""
    schema = rows.schema
    missing: Positions = np.empty(len(wanted), np.int64)
    at, values = (missing[:0], rows.values[:0]) if beside is None else beside
    beside_table = at, values.view(schema.kernel_dtype)
    cells = buckets, tags, rows.keys, rows.values, rows.scores, rows.flags
    pooled = out.view(schema.kernel_dtype)
    if not threads:
        own = *rings(), np.empty(schema.dim, schema.slot_dtype)
        uses = rule, now, False
        return missing[: _pool(wanted, tuple(bags), 0, bags.bag_count, beside_table, cells, uses, own, pooled, missing)]
    # Bags differ in size, so parts are made with about equal numbers of keys.
    shares = np.searchsorted(bags.offsets, even_bounds(len(wanted)))
    shares[-1] = bags.bag_count
    absent, sums = np.empty(part_count(), np.int64), np.empty((part_count(), schema.dim), schema.slot_dtype)
    scratch, uses = (*rings_of_parts(part_count()), sums), (rule, now, True)
    run_parts(_pool_in_parts, wanted, tuple(bags), shares, beside_table, cells, uses, scratch, pooled, missing, absent)
    return joined_parts(missing, bags.offsets[shares], absent)


def row_gradients(sums: Sums, bag_of: Positions, weights: Any, grads: Any, out: Any, *, threads: bool) -> None:
    """See contracts.RowKernels.row_gradients. threads: keys are split over the cores."""
    count, dim = out.shape

    if threads:
        bounds = even_bounds(count)
        run_parts(_row_gradients_in_parts, sums.first, sums.following, bag_of, weights, grads, bounds, out, dim)
    else:
        _row_gradients(sums.first, sums.following, bag_of, weights, grads, 0, count, out, dim)


@kernel
def _row_gradients(
    first: Any, following: Any, bag_of: Any, weights: Any, grads: Any, start: int, stop: int, out: Any, dim: int
) -> None:
    """Set out[i] to the sum, in order, of weight * grads[its bag] over the occurrences of key i; start <= i < stop."""
    weighted = len(weights) > 0
    for i in range(start, stop):
        at = first[i]
        bag = bag_of[at]
        if weighted:
            for j in range(dim):
                out[i, j] = weights[at] * grads[bag, j]
        else:
            for j in range(dim):
                out[i, j] = grads[bag, j]
        at = following[at]
        while at >= 0:
            bag = bag_of[at]
            if weighted:
                for j in range(dim):
                    out[i, j] += weights[at] * grads[bag, j]
            else:
                for j in range(dim):
                    out[i, j] += grads[bag, j]
            at = following[at]


@in_parts
def _row_gradients_in_parts(number: Any, arguments: Any) -> None:
    """Set the gradients of a part of the keys, from bounds[number] to bounds[number + 1]."""
    first, following, bag_of, weights, grads, bounds, out, dim = arguments
    _row_gradients(first, following, bag_of, weights, grads, bounds[number], bounds[number + 1], out, dim)
