"""Adagrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.optimizers.arithmetic import Elements, Number, sqrt
from kvemb.optimizers.base import Optimizer, Slot, check_not_negative


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad as torch.optim.Adagrad has it, without decay (Duchi, Hazan, Singer, JMLR 12, 2011).

    accumulator += g * g; w -= learning_rate * g / (sqrt(accumulator) + epsilon).
    TensorFlow starts the accumulator at 0.1, PyTorch at 0.
    """

    name: ClassVar[str] = "adagrad"

    learning_rate: float = 0.01
    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        check_not_negative(self, "learning_rate", "initial_accumulator_value", "epsilon")

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The accumulator, as wide as the embedding."""
        return (Slot("accumulator", initial=self.initial_accumulator_value),)

    @staticmethod
    def formula(
        dim: int, w: Elements, g: Elements, accumulator: Elements, learning_rate: Number, epsilon: Number
    ) -> None:
        """See Optimizer."""
        for j in range(dim):
            s = accumulator[j] + g[j] * g[j]
            accumulator[j] = s
            w[j] = w[j] - learning_rate * g[j] / (sqrt(s) + epsilon)
