"""RMSProp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_bool
from kvemb.optimizers.arithmetic import Elements, Number, larger, rounded, sqrt
from kvemb.optimizers.base import Slot, number
from kvemb.optimizers.formula import Function
from kvemb.optimizers.sgd import SGD, Momentum
from kvemb.optimizers.weight_decay import WeightDecayed


@dataclass(frozen=True, repr=False)
class RMSProp(WeightDecayed):
    """RMSProp as torch.optim.RMSprop has it (Tieleman, Hinton, 2012; centered: Graves, arXiv:1308.0850).

    One step::

        v = rho * v + (1 - rho) * g * g
        h = g / (sqrt(v) + epsilon)
        w -= learning_rate * h

    With centered=True::

        mean = rho * mean + (1 - rho) * g
        h = g / (sqrt(max(v - mean * mean, 0)) + epsilon)

    With momentum above 0::

        velocity = momentum * velocity + h
        w -= learning_rate * velocity

    A row has the slot `v`, with centered=True also `mean`, and with momentum also `velocity`. All change only in the
    row's own steps.

    Defaults are PyTorch's. If rounding makes v - mean * mean negative, PyTorch gives NaN. Keras adds epsilon inside the
    root, and its rho is 0.9.

    Args:
        learning_rate: Step size. Default: 0.01.
        rho: Decay rate of the averages; PyTorch's alpha. Default: 0.99.
        epsilon: Added to the root, so that nothing is divided by 0. Default: 1e-08.
        momentum: The share of the velocity that each step keeps. 0: no velocity. Default: 0.0.
        centered: Whether to divide by the root of the gradients' variance instead of their mean square. Default: False.
    """

    name = "rmsprop"

    learning_rate: float = number(0.01)
    rho: float = number(0.99)
    epsilon: float = number(1e-8)
    momentum: float = number(0.0)
    centered: bool = accepts(as_bool, False)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The average v of squared gradients; if centered, the average of gradients; with momentum, the velocity."""
        optional = [("mean", self.centered), ("velocity", self.momentum > 0)]
        return (Slot("v"), *(Slot(name) for name, there in optional if there))

    def own_formulas(self) -> tuple[Function, ...]:
        """See Optimizer."""
        scale = self._scale_centered if self.centered else self.formula
        return (scale, Momentum.formula if self.momentum > 0 else SGD.formula)

    @staticmethod
    def formula(dim: int, w: Elements, g: Elements, v: Elements, rho: np.float64, epsilon: Number) -> None:
        """Turn the gradient into h. See Optimizer."""
        keep = rounded(rho, g)
        take = rounded(1 - rho, g)
        for j in range(dim):
            square = keep * v[j] + take * (g[j] * g[j])
            v[j] = square
            g[j] = g[j] / (sqrt(square) + epsilon)

    @staticmethod
    def _scale_centered(
        dim: int, w: Elements, g: Elements, v: Elements, mean: Elements, rho: np.float64, epsilon: Number
    ) -> None:
        """Turn the gradient into the centered h. See Optimizer."""
        keep = rounded(rho, g)
        take = rounded(1 - rho, g)
        for j in range(dim):
            square = keep * v[j] + take * (g[j] * g[j])
            average = keep * mean[j] + take * g[j]
            v[j] = square
            mean[j] = average
            g[j] = g[j] / (sqrt(larger(0, square - average * average)) + epsilon)
