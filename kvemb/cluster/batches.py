"""The arrays of a batch on their way: gradients are divided among shards, rows are put in order. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import registry
from kvemb.cluster.router import GroupedKeys, Router
from kvemb.contracts import Mask, RowKernels, Values
from kvemb.rows.hashing import Keys
from kvemb.rows.schema import Schema

# The bytes to which the rows of a variable are aligned: the size of the largest dtype.
_ALIGN = 8


def divided(
    router: Router, keys: Keys, grads: Values, dim: int, *, admits: bool
) -> Iterator[tuple[int, tuple[Keys, Values]]]:
    """Yield each shard with its keys and gradients. Those of equal keys are summed, unless an admission counts them.

    grads (n, dim), of string keys with names behind them.

    The arrays are none of the caller's, who may change his own before a shard takes the step.
    """
    grouped = None if admits else router.group(keys)
    if grouped is not None:
        keys, grads = grouped.keys, summed(grouped, grads, dim)
        if len(grouped.parts) == 1:
            keys = keys.copy()
    for shard, where in router.split(keys).positions() if grouped is None else grouped.parts:
        yield shard, (keys[where], grads[where])


@cache
def _kernels() -> RowKernels:
    return registry.row_kernels()


def summed(grouped: GroupedKeys, grads: Values, dim: int) -> Values:
    """Return the sum of each distinct key's gradients, added in order, as the optimizer's step does.

    What stands behind the dim columns of gradients is that of a key's first one.
    """
    if not grouped.repeated:
        return grads.copy() if len(grouped.parts) < 2 else np.take(grads, grouped.sums.first, axis=0, mode="clip")
    out = np.empty((len(grouped.keys), grads.shape[1]), grads.dtype)
    _kernels().row_gradients(grouped.sums, np.arange(len(grads)), np.empty(0, grads.dtype), grads, out)
    if grads.shape[1] > dim:
        out[:, dim:] = grads[grouped.sums.first, dim:]
    return out


class Packed:
    """Rows of several variables in one array of bytes. lengths: how many each has. packed: None makes the array."""

    def __init__(self, schemas: Sequence[Schema], lengths: Sequence[int], packed: npt.NDArray[np.uint8] | None = None):
        sizes = [n * each.width * each.value_dtype.itemsize for n, each in zip(lengths, schemas, strict=True)]
        ends = list(accumulate(-(-size // _ALIGN) * _ALIGN for size in sizes))
        self.bytes = np.empty(ends[-1] if ends else 0, np.uint8) if packed is None else packed
        begins = [0, *ends[:-1]]
        self.rows: list[Values] = [
            self.bytes[begin : begin + size].view(schema.value_dtype).reshape(-1, schema.width)
            for begin, size, schema in zip(begins, sizes, schemas, strict=bool(ends))
        ]


def fill(out: Values, exists: Mask | None, grouped: GroupedKeys, answers: Mapping[int, tuple[Values, Any]]) -> None:
    """Fill out (n, dim) with the rows of a batch, and exists (n,) if given. answers: by shard, of its distinct keys."""
    if not grouped.parts:
        return
    rows, there = zip(*(answers[shard] for shard, _ in grouped.parts), strict=True)
    if grouped.repeated:
        np.take(np.concatenate(rows), grouped.inverse, axis=0, out=out, mode="clip")
    else:  # each row goes to its one place
        whole = _whole_rows(out)
        for (_, where), of_shard in zip(grouped.parts, rows, strict=True):
            whole[grouped.sums.first[where]] = _whole_rows(of_shard)
    if exists is not None:
        exists[:] = np.concatenate(there)[grouped.inverse]


def _whole_rows(rows: Values) -> Any:
    """Return rows (n, dim) as n items, which NumPy copies faster."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]
