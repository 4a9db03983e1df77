"""Adagrad with one accumulator a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.optimizers.arithmetic import Elements, Number, sqrt
from kvemb.optimizers.base import Optimizer, Slot, check_not_negative


@dataclass(frozen=True)
class RowWiseAdagrad(Optimizer):
    """Row-wise Adagrad, as FBGEMM's EXACT_ROWWISE_ADAGRAD and TorchRec's RowWiseAdagrad have it, without decay.

    accumulator += mean(g * g) over the row; w -= learning_rate / (sqrt(accumulator) + epsilon) * g.
    One number of state a row in place of `dim`. The mean is summed from the first element to the last. Defaults are
    TorchRec's (torchrec/optim/rowwise_adagrad.py); FBGEMM's epsilon is 1e-8.
    """

    name: ClassVar[str] = "row_wise_adagrad"

    learning_rate: float = 0.01
    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        check_not_negative(self, "learning_rate", "initial_accumulator_value", "epsilon")

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The accumulator, one number."""
        return (Slot("accumulator", 1, self.initial_accumulator_value),)

    @staticmethod
    def formula(
        dim: int, w: Elements, g: Elements, accumulator: Elements, learning_rate: Number, epsilon: Number
    ) -> None:
        """See Optimizer."""
        total = 0
        for j in range(dim):
            total = total + g[j] * g[j]
        s = accumulator[0] + total / dim
        accumulator[0] = s
        rate = learning_rate / (sqrt(s) + epsilon)
        for j in range(dim):
            w[j] = w[j] - rate * g[j]
