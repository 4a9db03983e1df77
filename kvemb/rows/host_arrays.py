"""Checking and converting callers' keys and values in the host's memory: arrays, lists, numbers and tensors.

Keys are converted only if no information is lost. Values are cast as NumPy's assignment casts them ("same_kind"), but a
finite number never becomes an infinity, nor an integer another one. Pure functions. kvemb.rows.device_arrays reads
arrays in a GPU's memory.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.numeric import is_integer
from kvemb.rows.tensors import plain
from kvemb.rows.words import is_missing

_INT64 = np.dtype(np.int64)


def as_keys(keys: npt.ArrayLike, dtype: np.dtype[Any]) -> npt.NDArray[np.int64]:
    """Return keys of any shape as the tiers' int64, a copy only if the dtype differs.

    uint64 keys keep their bits, so large ones appear negative. Raises TypeError for a dtype that would lose
    information, for bool, and for a masked array.
    """
    if type(keys) is np.ndarray and keys.dtype == dtype == _INT64 and keys.flags.c_contiguous:
        return keys
    array = _checked_array(keys, dtype, "keys")
    if dtype == np.uint64:
        return np.ascontiguousarray(array).view(np.int64).reshape(array.shape)
    return np.ascontiguousarray(array, dtype=np.int64).reshape(array.shape)


def as_values(
    values: npt.ArrayLike,
    dtype: np.dtype[Any],
    expected: tuple[int, ...],
    what: str = "values",
    shape: str = "keys.shape + (dim,)",
) -> npt.NDArray[Any]:
    """Return values of the expected shape, (*keys.shape, dim), as a contiguous (n, dim).

    Values of another dtype are cast: integers to floats, and any float to another. what, shape: the names of the values
    and of the shape in messages. Raises TypeError for other casts, and for integers that the dtype cannot hold;
    ValueError for another shape, and for a finite number that the dtype cannot hold.
    """
    plainly = type(values) is np.ndarray and values.dtype == dtype
    array = cast("npt.NDArray[Any]", values) if plainly else _checked_array(values, dtype, what)
    if array.shape != expected:
        raise ValueError(f"{what} must have shape {shape} = {expected}, got {array.shape}")
    return np.ascontiguousarray(array).reshape(-1, expected[-1])


def rows_to_fill(
    out: npt.NDArray[Any] | None, dtype: np.dtype[Any], expected: tuple[int, ...], keys: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return an array (n, dim) for the rows of keys: a new one, or a view of out.

    expected: the required shape of out, keys.shape + (dim,). keys: flat (n,).
    Raises TypeError for anything but an array of this dtype; ValueError for another shape, one that is not contiguous
    or not writable, or that shares memory with keys.
    """
    if out is None:
        return np.empty((len(keys), expected[-1]), dtype)
    if isinstance(out, np.ma.MaskedArray):
        raise TypeError("out must be an array without a mask, got a masked array; pass out.data")
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}; for a CPU tensor pass out.numpy()")
    if out.dtype != dtype:
        raise TypeError(f"out must be {dtype.name}, got {out.dtype}; make it with np.empty(shape, {dtype.name!r})")
    if out.shape != expected:
        raise ValueError(f"out must have shape keys.shape + (dim,) = {expected}, got {out.shape}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        wrong = "one that is not C-contiguous" if not out.flags.c_contiguous else "a read-only one"
        raise ValueError(f"out must be a C-contiguous, writable array, got {wrong}")
    if np.may_share_memory(out, keys):
        raise ValueError("out must not share memory with keys, which are read while out is filled; pass another array")
    return out.reshape(-1, expected[-1])


def public_keys(keys: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return keys (n,), as the tiers hold them, in the key dtype."""
    return keys.view(np.uint64) if dtype == np.uint64 else keys.astype(dtype)


def _checked_array(data: npt.ArrayLike, dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    if data is None:
        hint = f"give an array of {dtype.name}"
        if what == "grads":
            hint = "did backward() run, and does the looked-up tensor require gradients?"
        raise TypeError(f"{what} is None: {hint}")
    typed = isinstance(data, (np.ndarray, np.generic))
    data = plain(data, dtype, what)
    array = np.asarray(data) if typed else _from_python(data, dtype, what)
    if array.dtype == np.bool_ and what == "keys" and array.size:
        raise TypeError(f"keys must be {dtype.name}, got bool; if it is a mask, pass the keys that it selects")
    if array.dtype == dtype or not array.size:
        return array.astype(dtype, copy=False)
    # ml_dtypes has casts of complex numbers, which drop the imaginary part.
    fits = array.dtype.kind != "c" and np.can_cast(array.dtype, dtype, "safe" if what == "keys" else "same_kind")
    if not fits:
        advice = _advice(data, array, dtype, what)
        got = {"U": "str", "S": "bytes"}.get(array.dtype.kind, array.dtype.name)
        raise TypeError(f"{what} must be {dtype.name}, got {got}, which would lose information; {advice}")
    return _cast(array, dtype, what)


def _advice(data: Any, array: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> str:
    """Return what to do with an array that cannot be converted. data: what it was made of."""
    if array.shape == () and array.dtype == object:  # a set, a generator, a dict
        return f"give an array or a list of numbers, not a {type(data).__name__}"
    if what == "keys":
        if array.dtype.kind in "fO":
            for position, key in enumerate(array.reshape(-1).tolist()):
                if is_missing(key):
                    where = f"the key at position {position} is missing (None, NaN or null)"
                    return f"{where}: leave it out, or give it a number of its own"
        if array.dtype.kind in "USTO":
            return "make keys of strings with kvemb.hash_strings(keys)"
        if array.dtype == np.uint64:
            return "make the variable with key_dtype='uint64'"
    if array.dtype.kind in "biuf":
        return f"convert with {what}.astype({dtype.name!r})"
    return "number them" if what == "keys" else "give an array of numbers"


def _cast(array: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    """Return numbers in another dtype. Raises TypeError, ValueError if it cannot hold one of them."""
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        least, most = int(array.min()), int(array.max())
        if least < limits.min or most > limits.max:
            got = brief(least) if least == most else f"{brief(least)} to {brief(most)}"
            raise TypeError(f"{what} must fit {dtype.name} ({limits.min} to {limits.max}), got {got}")
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        stored = array.astype(dtype)
    if not np.can_cast(array.dtype, dtype, "safe"):
        lost = np.isinf(stored.astype(np.float64)) & np.isfinite(array)
        if lost.any():
            raise ValueError(f"{what} must fit {dtype.name}, got {array[lost].flat[0]:g}")
    return stored


def _from_python(data: npt.ArrayLike, dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    """Return lists and numbers as an array. Python's integers become those of an integer dtype."""
    try:
        array = np.asarray(data)
    except (ValueError, OverflowError, TypeError, RuntimeError) as error:  # the last two are raised by tensors in lists
        kind = type(data).__name__
        raise ValueError(f"{what} must be a rectangular array of {dtype.name}, got {kind}: {error}") from error
    if array.size == 0:
        return array.astype(dtype)
    whole = array.dtype.kind in "iu"
    if array.dtype.kind in "fO" and is_integer(dtype):
        # NumPy has no integer dtype that holds both numbers of [1, 2**63].
        exact = np.asarray(data, object)
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in exact.flat)
        array = exact if whole else array
    return _cast(array, dtype, what) if whole and is_integer(dtype) else array
