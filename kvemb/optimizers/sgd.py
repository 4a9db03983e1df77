"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.optimizers.arithmetic import Elements, Number
from kvemb.optimizers.base import Slot
from kvemb.optimizers.weight_decay import WeightDecayed


@dataclass(frozen=True, repr=False)
class SGD(WeightDecayed):
    """Stochastic gradient descent: w -= learning_rate * g. Defaults are torch.optim.SGD's."""

    name: ClassVar[str] = "sgd"

    learning_rate: float = 0.001

    @property
    def slots(self) -> tuple[Slot, ...]:
        """None."""
        return ()

    @staticmethod
    def formula(dim: int, w: Elements, g: Elements, learning_rate: Number) -> None:
        """See Optimizer."""
        for j in range(dim):
            w[j] = w[j] - learning_rate * g[j]


@dataclass(frozen=True, repr=False)
class Momentum(WeightDecayed):
    """SGD with momentum, as torch.optim.SGD has it without dampening (Polyak, 1964).

    velocity = momentum * velocity + g; w -= learning_rate * velocity. In Keras velocity includes the learning rate, so
    a change of the rate acts with a delay. The default momentum of 0.9 is the usual one; PyTorch's is 0.
    """

    name: ClassVar[str] = "momentum"

    learning_rate: float = 0.001
    momentum: float = 0.9

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The velocity, as wide as the embedding."""
        return (Slot("velocity"),)

    @staticmethod
    def formula(
        dim: int, w: Elements, g: Elements, velocity: Elements, learning_rate: Number, momentum: Number
    ) -> None:
        """See Optimizer."""
        for j in range(dim):
            b = momentum * velocity[j] + g[j]
            velocity[j] = b
            w[j] = w[j] - learning_rate * b


@dataclass(frozen=True, repr=False)
class Nesterov(WeightDecayed):
    """SGD with Nesterov's momentum, as torch.optim.SGD(nesterov=True) has it (Sutskever and others, ICML 2013).

    velocity = momentum * velocity + g; w -= learning_rate * (g + momentum * velocity).
    """

    name: ClassVar[str] = "nesterov"

    learning_rate: float = 0.001
    momentum: float = 0.9

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The velocity, as wide as the embedding."""
        return (Slot("velocity"),)

    @staticmethod
    def formula(
        dim: int, w: Elements, g: Elements, velocity: Elements, learning_rate: Number, momentum: Number
    ) -> None:
        """See Optimizer."""
        for j in range(dim):
            b = momentum * velocity[j] + g[j]
            velocity[j] = b
            w[j] = w[j] - learning_rate * (g[j] + momentum * b)
