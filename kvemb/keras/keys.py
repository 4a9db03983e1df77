"""The ids of a layer: integers of any shape, or pairs of int32 for backends that have no int64.

JAX has no int64 unless jax_enable_x64 is set, and cuts larger integers to 32 bits before a layer can see them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from kvemb.checks.brief import brief
from kvemb.keras.exporting import check_not_exported, is_signature_of_shapes, is_with_rows
from kvemb.variable import Variable

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def split_keys(keys: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Split int64 keys into two int32 columns, for a layer with ``split_keys=True``.

    JAX has no int64 unless ``jax_enable_x64`` is set.

    Args:
        keys: Integers of any shape.

    Returns:
        int32 of shape ``keys.shape + (2,)``: the upper and the lower 32 bits of each key.

    Raises:
        TypeError: The keys are not integers.

    Example:
        >>> import kvemb.keras as kk
        >>> kk.split_keys([[5, 2**40 + 1]]).tolist()
        [[[0, 5], [256, 1]]]
    """
    given = np.asarray(keys)
    if given.dtype.kind not in "iu":
        raise TypeError(f"keys must be integers, got {given.dtype.name}")
    whole = given.astype(np.int64, copy=False)
    return np.stack([(whole >> 32).astype(np.int32), whole.astype(np.uint32).view(np.int32)], axis=-1)


def joined_keys(pairs: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the keys of pairs (..., 2), as split_keys makes them."""
    upper, lower = pairs[..., 0].astype(np.int64), pairs[..., 1].astype(np.int32, copy=False).view(np.uint32)
    return (upper << 32) | lower.astype(np.int64)


def check_ids(ids: Any, what: str, *, split: bool, least_rank: int = 0) -> tuple[int | None, ...]:
    """Return the shape of ids, without the last axis of pairs. Raises TypeError, ValueError."""
    dtype = keras.backend.standardize_dtype(getattr(ids, "dtype", type(ids)))
    assumed = dtype not in _INTEGERS and (is_placeholder(ids) or is_signature_of_shapes())
    if dtype not in _INTEGERS and not assumed:
        if is_with_rows():
            raise TypeError(
                f"{what} must be integers, got {dtype}; input_signature says the dtypes of the model's inputs, such as "
                "[keras.InputSpec('int64', (None, 3))]"
            )
        check_not_exported()  # which assumes a dtype, too
        raise TypeError(
            f"{what} must be integers, got {dtype}; pass integers, and give the keras.Input dtype='int64', also as the "
            "first layer of a keras.Sequential: float32 has no integers above 2**24"
        )
    shape = tuple(ids.shape)
    if split and not assumed:
        if dtype != "int32" or shape[-1:] != (2,):
            raise TypeError(
                f"with split_keys=True, {what} must be int32 of shape (..., 2), as kvemb.keras.split_keys makes them, "
                f"got {dtype} of shape {shape}"
            )
        shape = shape[:-1]
    elif split:
        shape = shape[:-1]
    if len(shape) < least_rank:
        raise ValueError(
            f"{what} must have the shape (..., n), one bag for each of the last axis, got {shape}; for bags of one id "
            "use ids[:, None], or kvemb.keras.Embedding"
        )
    return shape


def is_placeholder(ids: Any) -> bool:
    """Whether Keras asks for shapes alone, with a dtype that it assumes: it builds a model that it loads with float32,
    and takes what keras.layers.Concatenate returns for floats. An Input says its dtype."""
    if isinstance(ids, keras.KerasTensor):
        history = getattr(ids, "_keras_history", None)
        return history is None or not isinstance(history.operation, keras.layers.InputLayer)
    return bool(in_symbolic_scope())


# Operations, and layers, of Keras whose results are values of their inputs.
_MOVES = {"Cast", "Concatenate", "ExpandDims", "Flatten", "GetItem", "Identity", "Permute", "Ravel", "Reshape", "Split"}
_MOVES |= {"Squeeze", "Stack", "Take", "Transpose"}


def warn_of_narrow_input(ids: Any, variable: Variable) -> None:
    """Warn of an Input whose dtype cannot hold the keys: Keras casts ids to it.

    ids: the Input, or what operations made of it that only move values or cast them.
    """
    wide = variable.key_dtype.itemsize > 4 and keras.backend.backend() != "jax"  # which warn_of_short_ids has told
    for given in _inputs_of(ids):
        dtype = keras.backend.standardize_dtype(given.dtype)
        if (dtype in _INTEGERS and wide and np.dtype(dtype).itemsize <= 4) or "float" in dtype:
            other = "" if "float" in dtype else ", or make the variable with key_dtype='int32'"
            warnings.warn(
                f"the keras.Input of {variable.name!r} has dtype {dtype}, to which Keras casts ids, and larger ones "
                f"become others; give it dtype='int64'{other}",
                stacklevel=2,
            )


def _inputs_of(ids: Any) -> Iterator[Any]:
    """Yield the Inputs from which KerasTensors of ids come."""
    history = getattr(ids, "_keras_history", None)
    if history is None:
        return
    if isinstance(history.operation, keras.layers.InputLayer):
        yield ids
    elif type(history.operation).__name__ in _MOVES:
        for each in history.operation._inbound_nodes[history.node_index].input_tensors:
            yield from _inputs_of(each)


def warn_of_short_ids(variable: Variable, stacklevel: int) -> None:
    """Warn where the backend cuts ids to 32 bits, unless the variable's keys have no more. stacklevel: the user's."""
    if variable.key_dtype.itemsize > 4 and keras.backend.backend() == "jax":
        import jax

        if not jax.config.jax_enable_x64:
            warnings.warn(
                f"JAX cuts ids to 32 bits, because jax_enable_x64 is off; keys of {variable.name!r} outside of int32 "
                "would be wrong. Set JAX_ENABLE_X64=1, or pass kvemb.keras.split_keys(ids) to a layer with "
                "split_keys=True, or make the variable with key_dtype='int32'",
                stacklevel=stacklevel,
            )


def check_flag(value: Any, what: str) -> bool:
    """Return a flag. Raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, got {brief(value)}")
    return value
