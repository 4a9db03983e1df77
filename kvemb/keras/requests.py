"""What layers look up, and what comes of it, in the host's memory: rows of keys, and gradients of rows.

A Request says how; Ids are the arrays of one batch. Pure functions but for the lookups; thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvemb.frameworks import store_calls
from kvemb.keras.keys import joined_keys
from kvemb.pooling.functions import bag_gradients, embedding_lookup_sparse
from kvemb.rows.hashing import Positions
from kvemb.variable import Variable

Array = npt.NDArray[Any]


class Request(NamedTuple):
    """How the ids of a batch are looked up in a variable.

    combiner: None for a row of each id, otherwise how the bags of the last axis are pooled. padding: a key whose rows
    are zeros, neither read nor trained, and left out of bags. split: whether ids are pairs of int32. dtype: of rows.
    """

    variable: Variable
    combiner: str | None = None
    padding: int | None = None
    split: bool = False
    dtype: str = "float32"


class Ids(NamedTuple):
    """The ids of a batch, as tensors or as arrays. mask: which ids count, of their shape; None: all.

    splits: for ids (n,) in bags of any lengths, where each begins, and n at last (bags + 1,).
    """

    ids: Any
    mask: Any = None
    splits: Any = None

    @property
    def given(self) -> list[Any]:
        """Those of the fields that are there, in order."""
        return [each for each in self if each is not None]

    def like(self, arrays: Sequence[Any]) -> Ids:
        """Return other values of the same fields, in order; `given` of the result is `arrays`."""
        rest = iter(arrays)
        return Ids(*(None if each is None else next(rest) for each in self))


def shape_of(request: Request, ids: Ids) -> tuple[int | None, ...]:
    """Return the shape of what is looked up for tensors of ids. None: a size that the backend does not know yet."""
    dim = request.variable.dim
    if ids.splits is not None:
        bags = ids.splits.shape[0]
        return (None if bags is None else bags - 1, dim)
    shape = tuple(ids.ids.shape[:-1] if request.split else ids.ids.shape)
    return (*(shape if request.combiner is None else shape[:-1]), dim)


def in_parts(batch: Sequence[Ids], arrays: Sequence[Array]) -> list[Ids]:
    """Return the ids of a batch with other values: those of `given` of all, in order."""
    rest = iter(arrays)
    return [ids.like([next(rest) for _ in ids.given]) for ids in batch]


class Bagged(NamedTuple):
    """The keys of a variable in a batch that count. keys (n,); kept (ids,): which ids they are, None for all.

    offsets (bags,): where each bag begins in keys. shape: of the results, without dim.
    """

    variable: Variable
    keys: Array
    kept: npt.NDArray[np.bool_] | None
    offsets: Positions
    shape: tuple[int, ...]


def bagged(request: Request, given: Ids) -> Bagged:
    """Return the keys of a batch of arrays."""
    ids = joined_keys(given.ids) if request.split else given.ids
    keys, kept = ids.reshape(-1), None if given.mask is None else given.mask.reshape(-1).astype(np.bool_)
    if request.padding is not None and _holds(ids.dtype, request.padding):
        kept = keys != request.padding if kept is None else kept & (keys != request.padding)
    if kept is not None and kept.all():
        kept = None
    shape, offsets = ids.shape, np.empty(0, np.int64)
    if request.combiner is not None:
        if given.splits is not None:
            offsets, shape = given.splits[:-1].astype(np.int64), (len(given.splits) - 1,)
        else:
            shape, count = ids.shape[:-1], int(np.prod(ids.shape[:-1], dtype=np.int64))
            offsets = np.arange(count) * ids.shape[-1]
        if kept is not None:
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
    return Bagged(request.variable, keys if kept is None else keys[kept], kept, offsets, shape)


def look_up(requests: Sequence[Request], batch: Sequence[Ids], *, touch: bool) -> list[Array]:
    """Return the rows of each request, ids.shape + (dim,), or its bags, new arrays. Nothing is inserted.

    touch: whether the uses of rows are recorded. Rows of all variables of a store are read with one call.
    """
    parts = [bagged(request, given) for request, given in zip(requests, batch, strict=True)]
    rows = iter(_rows([part for request, part in zip(requests, parts, strict=True) if request.combiner is None], touch))
    found = [
        _placed(next(rows), part) if request.combiner is None else _pooled(request, part, touch)
        for request, part in zip(requests, parts, strict=True)
    ]
    return [
        each.astype(request.dtype, copy=False).reshape(*part.shape, request.variable.dim)
        for each, request, part in zip(found, requests, parts, strict=True)
    ]


def gradients(request: Request, given: Ids, grads: Array) -> tuple[Array, Array]:
    """Return the keys (n,) and the gradients of their rows (n, dim), of the gradient of what look_up returned.

    Equal keys may be there several times. The arrays may share memory with the arguments.
    """
    part, variable = bagged(request, given), request.variable
    flat = np.asarray(grads, _dtype_of_slots(variable)).reshape(-1, variable.dim)
    if request.combiner is not None:
        return bag_gradients(variable, part.keys, part.offsets, request.combiner, flat)
    return part.keys, flat if part.kept is None else flat[part.kept]


def _pooled(request: Request, part: Bagged, touch: bool) -> Array:
    how: Any = request.combiner
    return embedding_lookup_sparse(request.variable, part.keys, part.offsets, combiner=how, touch=touch).values


def _rows(wanted: list[Bagged], touch: bool) -> list[Array]:
    if len(wanted) == 1:
        return [wanted[0].variable.lookup(wanted[0].keys, touch=touch)]
    found = store_calls.look_up(wanted, lambda parts: np.concatenate([each.keys for each in parts]), touch=touch)
    return [rows[begin:end] for rows, begin, end in found]


def _placed(rows: Array, part: Bagged) -> Array:
    """Return rows of the keys that count as rows of all ids: those of the others are zeros."""
    if part.kept is None:
        return rows
    whole = np.zeros((len(part.kept), rows.shape[1]), rows.dtype)
    whole[part.kept] = rows
    return whole


def _holds(dtype: np.dtype[Any], number: int) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


def _dtype_of_slots(variable: Variable) -> type[np.floating[Any]]:
    return np.float64 if variable.value_dtype.name == "float64" else np.float32
