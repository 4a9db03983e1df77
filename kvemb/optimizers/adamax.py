"""Adamax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.optimizers.adam_family import BiasCorrected
from kvemb.optimizers.arithmetic import Count, Elements, Number, absolute, larger, power, rounded
from kvemb.optimizers.base import Slot, number
from kvemb.optimizers.weight_decay import WeightDecayed


@dataclass(frozen=True, repr=False)
class Adamax(WeightDecayed, BiasCorrected):
    """Adamax as torch.optim.Adamax has it (Kingma, Ba, ICLR 2015, section 7.1).

    Step t::

        m = beta_1 * m + (1 - beta_1) * g
        u = max(beta_2 * u, abs(g) + epsilon)
        w -= learning_rate / (1 - beta_1 ** t) * m / u

    A row has the slots `m`, the average of gradients, and `u`, a decaying maximum. While a row is in no step, it
    does not move, and m and u do not decay.

    Defaults are PyTorch's. Keras and TensorFlow add epsilon in the division.

    Args:
        learning_rate: Step size. Default: 0.002.
        beta_2: Decay rate of u, at most 0.999999. Default: 0.999.
        epsilon: Added to the gradient's magnitude, so that nothing is divided by 0. Default: 1e-08.
    """

    name = "adamax"
    averages: ClassVar[tuple[Slot, ...]] = (Slot("m"), Slot("u"))

    learning_rate: float = number(0.002)

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        m: Elements,
        u: Elements,
        t: Count,
        learning_rate: np.float64,
        beta_1: np.float64,
        beta_2: Number,
        epsilon: Number,
    ) -> None:
        """See Optimizer."""
        rate = rounded(learning_rate / (1 - power(beta_1, t)), g)
        keep = rounded(beta_1, g)
        take = rounded(1 - beta_1, g)
        for j in range(dim):
            mean = keep * m[j] + take * g[j]
            most = larger(beta_2 * u[j], absolute(g[j]) + epsilon)
            m[j] = mean
            u[j] = most
            w[j] = w[j] - rate * mean / most
