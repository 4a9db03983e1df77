"""Adagrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.optimizers.base import Optimizer, Slot, check_not_negative


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad as torch.optim.Adagrad has it, without decay (Duchi, Hazan, Singer, JMLR 12, 2011).

    accumulator += g * g; row -= learning_rate * g / (sqrt(accumulator) + epsilon).
    Hyperparameters: (learning_rate, epsilon). TensorFlow starts the accumulator at 0.1, PyTorch at 0.
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

    def hyperparameters(self) -> tuple[float, ...]:
        """Return (learning_rate, epsilon)."""
        return (self.learning_rate, self.epsilon)
