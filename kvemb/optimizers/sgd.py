"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.optimizers.arithmetic import Elements, Number
from kvemb.optimizers.base import Slot, number
from kvemb.optimizers.weight_decay import WeightDecayed


@dataclass(frozen=True, repr=False)
class SGD(WeightDecayed):
    """Plain stochastic gradient descent, as torch.optim.SGD has it.

    One step::

        w -= learning_rate * g

    It has no slots. Defaults are PyTorch's.

    Args:
        learning_rate: Step size. Default: 0.001.
    """

    name = "sgd"
    slots: ClassVar[tuple[Slot, ...]] = ()

    learning_rate: float = number(0.001)

    @staticmethod
    def formula(dim: int, w: Elements, g: Elements, learning_rate: Number) -> None:
        """See Optimizer."""
        for j in range(dim):
            w[j] = w[j] - learning_rate * g[j]


@dataclass(frozen=True, repr=False)
class Momentum(WeightDecayed):
    """SGD with momentum, as torch.optim.SGD has it without dampening (Polyak, 1964).

    One step::

        velocity = momentum * velocity + g
        w -= learning_rate * velocity

    A row has one slot, `velocity`. While a row is in no step, its velocity neither moves it nor decays.

    In Keras the velocity includes the learning rate, so a change of the rate acts with a delay. The default momentum of
    0.9 is the usual one; PyTorch's is 0.

    Args:
        learning_rate: Step size. Default: 0.001.
        momentum: The share of the velocity that each step keeps. Default: 0.9.
    """

    name = "momentum"
    slots: ClassVar[tuple[Slot, ...]] = (Slot("velocity"),)

    learning_rate: float = number(0.001)
    momentum: float = number(0.9)

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
class Nesterov(Momentum):
    """SGD with Nesterov's momentum, as torch.optim.SGD(nesterov=True) has it (Sutskever and others, ICML 2013).

    One step::

        velocity = momentum * velocity + g
        w -= learning_rate * (g + momentum * velocity)

    A row has one slot, `velocity`. While a row is in no step, its velocity neither moves it nor decays.

    In Keras the velocity includes the learning rate, so a change of the rate acts with a delay. The default momentum of
    0.9 is the usual one; PyTorch's is 0.
    """

    name = "nesterov"

    @staticmethod
    def formula(
        dim: int, w: Elements, g: Elements, velocity: Elements, learning_rate: Number, momentum: Number
    ) -> None:
        """See Optimizer."""
        for j in range(dim):
            b = momentum * velocity[j] + g[j]
            velocity[j] = b
            w[j] = w[j] - learning_rate * (g[j] + momentum * b)
