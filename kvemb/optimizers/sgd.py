"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.optimizers.base import Optimizer, Slot, check_not_negative


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: row -= learning_rate * g. Hyperparameters: (learning_rate,)."""

    name: ClassVar[str] = "sgd"

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check_not_negative(self, "learning_rate")

    @property
    def slots(self) -> tuple[Slot, ...]:
        """None."""
        return ()

    def hyperparameters(self) -> tuple[float, ...]:
        """Return (learning_rate,)."""
        return (self.learning_rate,)
