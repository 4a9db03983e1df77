"""Writes weights of torch.nn's modules from a state_dict to variables: row i becomes the row of key i."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvemb.checks.brief import brief
from kvemb.rows.names import StringKeys, distinct_names, named_keys
from kvemb.torch.states import when_loaded
from kvemb.variable import Variable

_PIECE_ROWS = 65_536


def take_weights(
    destinations: dict[str, Variable], state_dict: dict[str, Any], prefix: str, error_msgs: list[str]
) -> tuple[bool, list[str]]:
    """Move weights out of a state_dict into variables, once the load in progress has loaded all else.

    destinations: by name in the module, without the prefix. error_msgs: receives a message for each invalid weight,
    which is not written. Returns whether there was a weight, and the names of weights that were not written. Raises
    what Variable.upsert raises.
    """
    given = {name: state_dict.pop(prefix + name) for name in destinations if prefix + name in state_dict}
    for name, weight in given.items():
        variable = destinations[name]
        try:
            if variable.key_dtype.hasobject:
                raise ValueError(
                    f"{prefix + name} has rows for the keys 0, 1, 2 and so on, but keys are strings; write its rows "
                    "with variable.upsert(strings, rows), or make the module with from_pretrained(weight, ..., keys=)"
                )
            check_weight(weight, prefix + name, variable.dim)
        except (TypeError, ValueError) as error:
            error_msgs.append(f"{error}, for variable {variable.name!r}")
        else:
            when_loaded(partial(write_weight, weight, variable))
    served = {destinations[name] for name in given}
    lacking: dict[Variable, str] = {}
    for name, variable in destinations.items():
        if variable not in served:
            lacking.setdefault(variable, prefix + name)
    return bool(given), list(lacking.values())


def check_weight(weight: Any, what: str, dim: int | None) -> int:
    """Return the width of a weight's rows, which must be dim if that is given. what: its name in errors.

    Raises TypeError unless it is a dense tensor of floats, ValueError for another shape.
    """
    if not isinstance(weight, torch.Tensor) or weight.layout != torch.strided or not weight.is_floating_point():
        raise TypeError(f"{what} must be a dense tensor of floats, got {brief(weight)}")
    if weight.ndim != 2 or weight.shape[1] != (dim or weight.shape[1]):
        raise ValueError(f"{what} must have the shape (n, {dim or 'dim'}), got {tuple(weight.shape)}")
    return int(weight.shape[1])


def check_keys(keys: Any, count: int, name_bytes: int) -> npt.NDArray[Any] | StringKeys:
    """Return the keys of a weight's rows (n,): strings for a variable with name_bytes, integers for one with 0.

    Raises TypeError for others; ValueError for equal ones; HashCollision.
    """
    if name_bytes:
        return _distinct_strings(named_keys(keys, name_bytes), count)
    given = keys.detach().cpu().numpy() if isinstance(keys, torch.Tensor) else np.asarray(keys)
    if given.dtype.kind not in "iu":
        raise TypeError(
            f"keys must be integers, got {given.dtype.name}; make them of strings with kvemb.hash_strings, or give "
            "key_dtype='string'"
        )
    _check_one_each(given.shape, count)
    distinct, counts = np.unique(given, return_counts=True)
    if len(distinct) < count:
        raise ValueError(f"keys must be distinct, got {distinct[counts > 1][0]} more than once")
    return given


def _distinct_strings(keys: StringKeys, count: int) -> StringKeys:
    _check_one_each(keys.shape, count)
    found = distinct_names(keys)
    if found.repeated:
        twice = keys[found.last[found.counts > 1][:1]].strings()[0]
        raise ValueError(f"keys must be distinct, got {brief(twice)} more than once")
    return keys


def _check_one_each(shape: tuple[int, ...], count: int) -> None:
    if shape != (count,):
        raise ValueError(f"keys must have one key for each row of embeddings, ({count},), got {shape}")


def write_weight(weight: torch.Tensor, variable: Variable, keys: Any = None) -> None:
    """Upsert a weight (n, dim), rounded to the variable's dtype, under these keys (n,), or 0 to n - 1.

    Memory does not grow with n. Raises what Variable.upsert raises.
    """
    wide = torch.float64 if variable.value_dtype.name == "float64" else torch.float32
    for start in range(0, len(weight), _PIECE_ROWS):
        piece = weight[start : start + _PIECE_ROWS].detach().to("cpu", wide)
        rows = piece.numpy().astype(variable.value_dtype, copy=False)
        stop = start + len(rows)
        variable.upsert(np.arange(start, stop) if keys is None else keys[start:stop], rows)
