"""Weights of torch.nn's modules, as a state_dict has them, into variables: row i becomes the row of key i."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from kvemb.checks.brief import brief
from kvemb.variable import Variable

_PIECE_ROWS = 65_536


class Destination(NamedTuple):
    """Where a weight goes. padding: a key that gets no row."""

    variable: Variable
    padding: int | None = None


def take_weights(
    destinations: dict[str, Destination], state_dict: dict[str, Any], prefix: str, error_msgs: list[str]
) -> tuple[bool, list[str]]:
    """Move weights out of a state_dict into variables.

    destinations: by name in the module, which prefix precedes. error_msgs: gets what is wrong with a weight, which is
    then not written. Returns whether there was a weight, and the names of those that no variable got. Raises what
    Variable.upsert raises.
    """
    given = {name: state_dict.pop(prefix + name) for name in destinations if prefix + name in state_dict}
    for name, weight in given.items():
        variable = destinations[name].variable
        try:
            check_weight(weight, prefix + name, variable.dim)
        except (TypeError, ValueError) as error:
            error_msgs.append(f"{error}, for variable {variable.name!r}")
        else:
            write_weight(weight, destinations[name])
    served = {id(destinations[name].variable) for name in given}
    lacking: dict[int, str] = {}
    for name, destination in destinations.items():
        if id(destination.variable) not in served:
            lacking.setdefault(id(destination.variable), prefix + name)
    return bool(given), list(lacking.values())


def check_weight(weight: Any, what: str, dim: int | None) -> int:
    """Return how wide the rows of a weight are, which is dim, if that is given. what: its name in errors.

    Raises TypeError for what is not a dense tensor of floats, ValueError for another shape.
    """
    if not isinstance(weight, torch.Tensor) or weight.layout != torch.strided or not weight.is_floating_point():
        raise TypeError(f"{what} must be a dense tensor of floats, got {brief(weight)}")
    if weight.ndim != 2 or weight.shape[1] != (dim or weight.shape[1]):
        raise ValueError(f"{what} must have the shape (n, {dim or 'dim'}), got {tuple(weight.shape)}")
    return int(weight.shape[1])


def write_weight(weight: torch.Tensor, destination: Destination) -> None:
    """Upsert a weight (n, dim), rounded to the variable's dtype, under the keys 0 to n - 1, but for the padding.

    The memory that it takes does not grow with n. Raises what Variable.upsert raises.
    """
    variable = destination.variable
    wide = torch.float64 if variable.value_dtype.name == "float64" else torch.float32
    for start in range(0, len(weight), _PIECE_ROWS):
        piece = weight[start : start + _PIECE_ROWS].detach().to("cpu", wide)
        rows = piece.numpy().astype(variable.value_dtype, copy=False)
        keys = np.arange(start, start + len(rows))
        kept = slice(None) if destination.padding is None else keys != destination.padding
        variable.upsert(keys[kept], rows[kept])
