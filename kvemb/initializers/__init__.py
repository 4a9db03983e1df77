"""Initializers, which give the rows of missing keys: each element is a pure function of (seed, key, column).

Rows are the same on every machine and in every version, batch, shard and order: elements are calculated with an integer
hash and IEEE `+ - * /` and `sqrt` in float64 only, then rounded to the dtype once (bfloat16 through float32, as
ml_dtypes does). Initializers are frozen values; any thread may use them. Their rows are part of the format.

Example:
    >>> ads = store.get_variable("ads", dim=2, initializer=kvemb.RandomUniform(-0.1, 0.1))
    >>> bool((np.abs(ads.lookup([1, 2])) <= 0.1).all())
    True
    >>> store.get_variable("queries", dim=2, initializer=[0.5, 1.5]).lookup([7])
    array([[0.5, 1.5]], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.declared import from_json
from kvemb.checks.numeric import is_number
from kvemb.errors import UnsupportedFormat
from kvemb.initializers.base import Initializer, Random
from kvemb.initializers.fixed import Constant, Ones, Row, Zeros
from kvemb.initializers.foreign import converted
from kvemb.initializers.random import GlorotUniform, RandomNormal, RandomUniform, TruncatedNormal

__all__ = [
    "Constant",
    "GlorotUniform",
    "Initializer",
    "Ones",
    "RandomNormal",
    "RandomUniform",
    "Row",
    "TruncatedNormal",
    "Zeros",
    "as_initializer",
    "constant",
    "glorot_uniform",
    "initializer_from_json",
    "normal",
    "ones",
    "truncated_normal",
    "uniform",
    "zeros",
]

_KINDS: dict[str, type[Initializer]] = {
    kind.kind: kind
    for kind in (Zeros, Ones, Constant, Row, RandomUniform, RandomNormal, TruncatedNormal, GlorotUniform)
}

# The same by TensorFlow's lower-case names.
zeros = Zeros
ones = Ones
constant = Constant
uniform = RandomUniform
normal = RandomNormal
truncated_normal = TruncatedNormal
glorot_uniform = GlorotUniform


def as_initializer(spec: Any, dim: int, dtype: npt.DTypeLike) -> Initializer:
    """Return the initializer of an `initializer` argument, checked for rows of this dim and dtype.

    Args:
        spec: None (zeros), a real number (a constant), a list, tuple or array of shape (dim,) (a default row), an
            Initializer, or one of TensorFlow or Keras of constants, or of one uniform or normal distribution.
        dim: The number of columns of a row.
        dtype: The dtype of a row.

    Returns:
        The initializer.

    Raises:
        TypeError: spec is anything else, or a random initializer for an integer dtype.
        ValueError: spec has another shape, or values that do not fit dtype.
    """
    if spec is None:
        found: Initializer = Zeros()
    elif type(spec) in _KINDS.values():  # not a subclass, because what it adds could not be stored
        found = spec
    elif isinstance(spec, (list, tuple)) or (isinstance(spec, np.ndarray) and spec.ndim):
        found = _row(spec, dim)
    elif (foreign := converted(spec)) is not None:
        found = foreign
    elif is_number(spec) or isinstance(spec, (np.ndarray, np.generic)):
        found = Constant(spec[()] if isinstance(spec, np.ndarray) else spec)  # type: ignore[arg-type]
    else:
        raise TypeError(
            f"initializer must be None, a number, an array of {dim} numbers or an Initializer, "
            f"got {type(spec).__name__} {brief(spec)}; use one of kvemb.initializers, such as "
            "kvemb.RandomNormal(0.0, 0.05)"
        )
    found.check(dim, dtype)
    return found


def _row(spec: Any, dim: int) -> Row:
    try:
        shape: object = np.shape(spec)
    except ValueError:
        shape = "a ragged list"
    if shape != (dim,):
        advice = "give one number per column"
        if isinstance(shape, tuple) and len(shape) == 1:
            advice += f", or dim={shape[0]}"
        raise ValueError(f"initializer must have shape (dim,) = ({dim},), got {shape}; {advice}")
    return Row(spec)


def initializer_from_json(data: Mapping[str, Any]) -> Initializer:
    """Return the initializer that to_json() described.

    Args:
        data: A mapping with "kind" and the fields.

    Returns:
        An initializer with equal to_json().

    Raises:
        UnsupportedFormat: The kind or a field is unknown, a field's value is invalid, or a random initializer has no
            seed.
    """
    made = from_json(data, "kind", _KINDS, "initializer")
    if isinstance(made, Random) and made.seed is None:
        raise UnsupportedFormat(f"initializer {brief(data)} cannot be read: it has no seed")
    return made
