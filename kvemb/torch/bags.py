"""The arguments of modules: tensors of keys, or strings, in bags by offsets or by rows, checked before any lookup.

Pure functions and values. `what` names an argument in errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvemb.checks.brief import brief
from kvemb.handle import inside
from kvemb.rows.bags import bounds_of
from kvemb.rows.device_arrays import device_of
from kvemb.rows.hashing import Unique
from kvemb.rows.host_arrays import as_keys, public_keys
from kvemb.rows.names import StringKeys, distinct_names, joined_names, named_keys, other_than
from kvemb.variable import Variable

# In the host's memory an array or StringKeys, on a GPU a tensor.
Keys = Any


class Ids(NamedTuple):
    """The ids of a call. keys: flat (n,). shape: as they were given. device: of the results."""

    keys: Keys
    shape: tuple[int, ...]
    device: torch.device


def ids_of(ids: Any, variable: Variable, device: torch.device, what: str = "ids") -> Ids:
    """Return the ids of a variable: a tensor of integers, or strings if its keys are strings.

    device: of the results for strings, which are on none. Raises TypeError; ValueError, as for strings that are too
    long.
    """
    if not variable.key_dtype.hasobject:
        keys = keys_on_their_device(ids, what)
        return Ids(keys.reshape(-1), tuple(ids.shape), ids.device)
    named = strings_of(ids, variable, what)
    return Ids(named[:], named.shape, device)


def strings_of(ids: Any, variable: Variable, what: str = "ids") -> StringKeys:
    """Return the ids of a variable with string keys, of their shape. Raises as ids_of does."""
    if isinstance(ids, torch.Tensor):
        raise TypeError(
            f"{what} must be strings, as variable {variable.name!r} has string keys, got a tensor of {ids.dtype}; for "
            "integers, make the variable with key_dtype='int64'"
        )
    try:
        return named_keys(ids, inside(variable).schema.name_bytes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from error


def keys_of(ids: Any, what: str = "ids") -> npt.NDArray[Any]:
    """Return a tensor of integers as an array that shares its memory where it is on the CPU. Raises TypeError."""
    tensor = _checked(ids, what).detach().cpu()
    try:
        keys: npt.NDArray[Any] = tensor.numpy()
    except (RuntimeError, TypeError) as error:  # from torch.func, torch.vmap, torch.export
        raise TypeError(
            f"{what} must be a tensor that NumPy can read, got {type(ids).__name__}; rows are looked up outside "
            f"torch.func, torch.vmap and torch.export: {error}"
        ) from error
    return keys


def keys_on_their_device(ids: Any, what: str = "ids") -> Keys:
    """Return ids as keys_of does; ids on a GPU stay tensors."""
    return _checked(ids, what).detach() if device_of(ids) is not None else keys_of(ids, what)


def joined_keys(parts: list[Keys]) -> Keys:
    """Return the keys concatenated. Raises ValueError if they are on several devices."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], StringKeys):
        return joined_names(parts)
    arrays, tensors = ([part for part in parts if isinstance(part, kind)] for kind in (np.ndarray, torch.Tensor))
    if arrays and tensors:
        raise ValueError("ids of one variable are on several devices; move them to one")
    return np.concatenate(arrays) if arrays else torch.cat(tensors)


def own_keys(keys: Keys) -> Keys:
    """Return keys in the host's memory that the caller cannot change: a copy of an array."""
    return keys.copy() if isinstance(keys, np.ndarray) else keys


def distinct_in_host(keys: Keys, variable: Variable) -> tuple[Keys, Unique]:
    """Return the distinct keys of a batch in the host's memory, by first occurrence.

    Raises TypeError for a wrong dtype, HashCollision for two strings of one hash.
    """
    if isinstance(keys, StringKeys):
        found = distinct_names(keys)
        return keys[found.sums.first], found
    found = Unique(as_keys(keys, variable.key_dtype))
    return public_keys(found.keys, variable.key_dtype), found


def not_padding(keys: Keys, padding: int | str | None) -> Any:
    """Return which keys (n,) are not the padding; None: all, as there is none or their dtype cannot represent it."""
    if isinstance(keys, StringKeys) and padding is not None:
        return other_than(keys, named_keys(padding, keys.names.shape[1]))
    padding = padding_in_dtype(padding, keys)
    return None if padding is None else keys != padding


def padding_in_dtype(padding: int | str | None, keys: Keys) -> int | None:
    """Return the padding key; None if there is none, or if the dtype of keys, integers, cannot represent it."""
    if not isinstance(padding, int):
        return None
    limits = np.iinfo(keys.dtype) if isinstance(keys, np.ndarray) else torch.iinfo(keys.dtype)
    return padding if limits.min <= padding <= limits.max else None


def _checked(ids: Any, what: str) -> torch.Tensor:
    if not isinstance(ids, torch.Tensor):
        first = ids
        while isinstance(first, (list, tuple)) or (isinstance(first, np.ndarray) and first.ndim):
            if not len(first):
                break
            first = first[0]
        cure = "torch.as_tensor(...)"
        if isinstance(first, (str, bytes)):
            cure = f"torch.from_numpy(kvemb.hash_strings({what})), or make the variable with key_dtype='string'"
        raise TypeError(f"{what} must be a tensor of integers, got {brief(ids)}; use {cure}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.is_quantized:
        raise TypeError(
            f"{what} must be a tensor of integers, got {ids.dtype}; if these are whole numbers, pass {what}.long()"
        )
    if ids.is_nested or ids.layout != torch.strided:
        instead = f"pass {what}.values() and {what}.offsets()[:-1]" if ids.is_nested else f"pass {what}.to_dense()"
        if ids.is_nested and ids.layout == torch.strided:
            instead = f"make it with layout=torch.jagged, and {instead}"
        elif ids.is_nested and not ids.is_contiguous():  # of torch.nested.narrow: values() has more than the bags
            instead = f"let {what} = {what}.contiguous(), and {instead}"
        found = "a nested one" if ids.is_nested else ids.layout
        raise TypeError(f"{what} must be a dense tensor, got {found}; {instead}")
    if ids.device.type == "meta":
        raise TypeError(f"{what} must be a tensor with numbers, got one on the device 'meta'")
    return ids


@dataclass(frozen=True)
class JaggedIds:
    """Ids in bags. keys (n,); offsets (count,) int64, on the CPU, where each bag begins; weights (n,) or None.

    one_each: every bag has exactly one id, so bag i is id i. device: of the results.
    """

    keys: Keys
    offsets: torch.Tensor
    count: int
    weights: torch.Tensor | None
    one_each: bool
    device: torch.device

    def only(self, chosen: Any) -> JaggedIds:
        """Return the bags with some of their ids. chosen (n,): which, bools where the keys are."""
        kept = torch.as_tensor(chosen)
        offsets = torch.cat([kept.new_zeros(1), kept]).cumsum(0).cpu()[self.offsets]
        weights = None if self.weights is None else self.weights[kept.to(self.weights.device)]
        return replace(self, keys=self.keys[chosen], offsets=offsets, weights=weights, one_each=False)


def bags_of(
    ids: Ids,
    offsets: Any = None,
    weights: Any = None,
    *,
    include_last_offset: bool = False,
    mode: str = "sum",
    what: str = "ids",
) -> JaggedIds:
    """Return bags given as for torch.nn.EmbeddingBag: ids (n,) and offsets, or ids (count, m) without offsets.

    weights: per_sample_weights, of the shape of ids. Raises TypeError, ValueError, before anything is looked up.
    """
    if weights is not None:
        if mode != "sum":
            raise ValueError(f"per_sample_weights need mode='sum', got mode={mode!r}")
        if not isinstance(weights, torch.Tensor) or not weights.is_floating_point():
            found = f"{weights.dtype}; pass weights.float()" if isinstance(weights, torch.Tensor) else brief(weights)
            raise TypeError(f"per_sample_weights of {what} must be a tensor of floats, got {found}")
        if weights.shape != ids.shape:
            raise ValueError(
                f"per_sample_weights must have the shape of {what}, {ids.shape}, got {tuple(weights.shape)}"
            )
        weights = weights.reshape(-1)
    if len(ids.shape) == 2:
        if offsets is not None:
            raise ValueError(f"offsets must be None, as {what} has two dimensions: each row is a bag")
        count, width = ids.shape
        begins = np.arange(0, count * width, width) if width else np.zeros(count, np.int64)
        one_each = width == 1
    elif len(ids.shape) == 1:
        if offsets is None:
            raise ValueError(f"{what} has one dimension, so give offsets; for bags of one id pass {what}[:, None]")
        given = keys_of(offsets, "offsets")
        begins = bounds_of(given, len(ids.keys), last_included=include_last_offset, what=what)[:-1]
        count = len(begins)
        one_each = count == len(ids.keys) and bool((begins == np.arange(count)).all())
    else:
        raise ValueError(f"{what} must have one or two dimensions, got the shape {ids.shape}")
    return JaggedIds(ids.keys, torch.from_numpy(begins), count, weights, one_each, ids.device)
