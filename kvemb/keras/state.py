"""The dense state of a model as a file: weights, seeds, the optimizer's state and metrics, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import keras
import numpy as np

from kvemb.keras.anchors import Anchor

_METRICS = "metrics/"


def write_state(model: Any, file: IO[bytes]) -> None:
    """Write the values of a model's variables, as an .npz file."""
    np.savez(file, allow_pickle=False, **{name: _saved(each) for name, each in _variables(model).items()})


def read_state(model: Any, path: Path) -> dict[str, Any]:
    """Set a model's variables, except metrics, to the values in a file. Returns the values of the metrics by name.

    Raises ValueError if the file is of another model; nothing is changed then.
    """
    with np.load(path, allow_pickle=False) as found:
        values = {name: found[name] for name in found.files}
    model.optimizer.build(model.trainable_variables)  # TensorFlow's trainer has not done this yet
    metrics = {name: values.pop(name) for name in list(values) if name.startswith(_METRICS)}
    mine = {name: each for name, each in _variables(model).items() if not name.startswith(_METRICS)}
    if lacking := sorted(set(mine) ^ set(values)):
        raise ValueError(
            f"the checkpoint {path.parent} is of another model: {lacking[0]} is in only one of them; build and compile "
            "the same model"
        )
    for name, variable in mine.items():
        if tuple(variable.shape) != values[name].shape:
            shapes = f"{values[name].shape}, but the model's has {tuple(variable.shape)}"
            raise ValueError(f"the checkpoint {path.parent} is of another model: {name} has the shape {shapes}")
    for name, variable in mine.items():
        if not isinstance(variable, Anchor):  # whose rows the checkpoint has
            variable.assign(values[name])
    return metrics


def set_metrics(model: Any, values: Mapping[str, Any]) -> bool:
    """Set the metrics to values that read_state() returned. Returns whether the model has them all already."""
    mine = _variables(model)
    if not set(values) <= set(mine):
        return False
    for name, value in values.items():
        mine[name].assign(value)
    return True


def _variables(model: Any) -> dict[str, Any]:
    groups = {"model": model.variables, "optimizer": model.optimizer.variables, "metrics": model.metrics_variables}
    return {f"{group}/{number}": each for group, found in groups.items() for number, each in enumerate(found)}


def _saved(variable: Any) -> Any:
    value = keras.ops.convert_to_numpy(variable.value)
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value
