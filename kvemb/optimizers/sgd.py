"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.optimizers.arithmetic import Elements, Number
from kvemb.optimizers.base import Optimizer, Slot, check_not_negative


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: w -= learning_rate * g."""

    name: ClassVar[str] = "sgd"

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check_not_negative(self, "learning_rate")

    @property
    def slots(self) -> tuple[Slot, ...]:
        """None."""
        return ()

    @staticmethod
    def formula(dim: int, w: Elements, g: Elements, learning_rate: Number) -> None:
        """See Optimizer."""
        for j in range(dim):
            w[j] = w[j] - learning_rate * g[j]
