"""LearningRate: a callback that sets the learning rate of rows before each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_number
from kvemb.frameworks.rates import rate_of, with_rate
from kvemb.keras.layer import RowsLayer
from kvemb.variable import Variable


class LearningRate(keras.callbacks.LambdaCallback):
    """Set the learning rate of a model's rows before each batch, by a schedule or as the model's optimizer has it.

    Rows have the optimizer of their variable. Without this callback its rate stays as it is;
    ``layer.variable.optimizer = kvemb.optimizers.Adagrad(0.01)`` changes it by hand. With ``steps_per_execution``
    above 1, the rate is set once for that many batches.

    Args:
        schedule: A ``keras.optimizers.schedules.LearningRateSchedule``, or a function from the number of the step, an
            int from 0, to the rate. The step is the number of batches that the model's optimizer has counted. None:
            the current rate of the model's optimizer, which callbacks such as ReduceLROnPlateau change.
        scale: What that rate is multiplied by.

    Raises:
        TypeError: If ``schedule`` is not callable, or ``scale`` is not a number.
        ValueError: ``fit`` raises it if a rate is not finite and at least 0, or if the model has no rows.

    Example:
        >>> import kvemb.keras as kk
        >>> callback = kk.LearningRate(lambda step: 0.1 / (1 + step))
    """

    def __init__(self, schedule: Callable[[int], Any] | None = None, scale: float = 1.0) -> None:
        super().__init__(on_train_batch_begin=self._set)
        if schedule is not None and not callable(schedule):
            raise TypeError(f"schedule must be a function of the step, or None, got {brief(schedule)}")
        self.schedule: Callable[[int], Any] | None = schedule
        self.scale: float = float(as_number(scale, "scale"))

    def _set(self, batch: int, logs: Any = None) -> None:
        """Set the rates. Raises ValueError."""
        model = self.model
        found = list(_variables(model))
        if not found:
            raise ValueError("kvemb.keras.LearningRate found no trained layer of kvemb.keras in the model")
        optimizer = model.optimizer
        rate = optimizer.learning_rate if self.schedule is None else self.schedule(_step(optimizer))
        rate = self.scale * _number(rate)
        for variable in found:
            rule = variable.optimizer
            if rule is not None and rate_of(rule) != rate:
                variable.optimizer = with_rate(rule, rate)


def _step(optimizer: Any) -> int:
    return int(_number(optimizer.iterations))


def _number(given: Any) -> float:
    """Return a number, a tensor of one or a variable of one as a float."""
    return float(keras.ops.convert_to_numpy(getattr(given, "value", given)))


def _variables(model: Any) -> Iterator[Variable]:
    for layer in model._flatten_layers():
        if isinstance(layer, RowsLayer) and layer.trainable:
            yield from layer.variables_of_rows
