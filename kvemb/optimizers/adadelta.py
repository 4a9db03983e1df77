"""Adadelta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.optimizers.arithmetic import Elements, Number, rounded, sqrt
from kvemb.optimizers.base import Slot, number
from kvemb.optimizers.weight_decay import WeightDecayed


@dataclass(frozen=True, repr=False)
class Adadelta(WeightDecayed):
    """Adadelta as torch.optim.Adadelta has it (Zeiler, arXiv:1212.5701).

    One step::

        v = rho * v + (1 - rho) * g * g
        delta = sqrt(u + epsilon) / sqrt(v + epsilon) * g
        w -= learning_rate * delta
        u = rho * u + (1 - rho) * delta * delta

    A row has two slots: `v`, the average of squared gradients, and `u`, the average of squared changes. Both decay only
    in the row's own steps.

    Defaults are PyTorch's. Keras' are a learning rate of 0.001, rho 0.95 and epsilon 1e-7.

    Args:
        learning_rate: Factor of the change. Default: 1.0.
        rho: Decay rate of both averages. Default: 0.9.
        epsilon: Added inside both roots. It sets the size of the first steps. Default: 1e-06.
    """

    name = "adadelta"
    slots: ClassVar[tuple[Slot, ...]] = (Slot("v"), Slot("u"))

    learning_rate: float = number(1.0)
    rho: float = number(0.9)
    epsilon: float = number(1e-6)

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        v: Elements,
        u: Elements,
        learning_rate: Number,
        rho: np.float64,
        epsilon: Number,
    ) -> None:
        """See Optimizer."""
        keep = rounded(rho, g)
        take = rounded(1 - rho, g)
        for j in range(dim):
            square = keep * v[j] + take * (g[j] * g[j])
            before = u[j]
            delta = sqrt(before + epsilon) / sqrt(square + epsilon) * g[j]
            v[j] = square
            u[j] = keep * before + take * (delta * delta)
            w[j] = w[j] - learning_rate * delta
