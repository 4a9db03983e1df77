"""NAdam."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from kvemb.optimizers.adam_family import BiasCorrected, average
from kvemb.optimizers.arithmetic import Count, Elements, Number, Table, entry, power, root_power, rounded, sqrt
from kvemb.optimizers.base import number
from kvemb.optimizers.formula import Function
from kvemb.optimizers.weight_decay import WeightDecayed

# A product below this, or a factor this close to 1, has no effect on the float64 results.
_NOTHING = 2.0**-60
_BLOCK = 4096


@dataclass(frozen=True, repr=False)
class NAdam(WeightDecayed, BiasCorrected):
    """NAdam as torch.optim.NAdam has it (Dozat, ICLR 2016 workshop).

    Step t, where mu(t) = beta_1 * (1 - 0.5 * 0.96 ** (t * momentum_decay)), and p(t) is the product of mu(1) to mu(t)::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        d = sqrt(v / (1 - beta_2 ** t)) + epsilon
        w -= learning_rate * ((1 - mu(t)) / (1 - p(t)) * g / d + mu(t + 1) / (1 - p(t + 1)) * m / d)

    A row has the slots `m` and `v`, the averages of gradients and of their squares. While a row is in no step, it does
    not move, and m and v do not decay.

    Defaults are PyTorch's. Keras' Nadam has a momentum_decay of 1.

    Args:
        learning_rate: Step size. Default: 0.002.
        epsilon: Added to the corrected root, so that nothing is divided by 0. Default: 1e-08.
        momentum_decay: How fast mu(t) grows from beta_1 / 2 towards beta_1. Default: 0.004.
    """

    name = "nadam"

    learning_rate: float = number(0.002)
    momentum_decay: float = number(0.004)

    @property
    def fading(self) -> float:
        """0.96 ** momentum_decay."""
        return _fading(self.momentum_decay)

    @property
    def products(self) -> Table:
        """The product of 1 - 0.5 * fading ** i for i from 1 to t, at index t; the last one for all larger t."""
        return _products(self.fading)

    def own_formulas(self) -> tuple[Function, ...]:
        """See Optimizer."""
        return (average, self.formula)

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        m: Elements,
        v: Elements,
        t: Count,
        learning_rate: np.float64,
        beta_1: np.float64,
        beta_2: np.float64,
        epsilon: Number,
        fading: np.float64,
        products: Table,
    ) -> None:
        """See Optimizer."""
        mu = beta_1 * (1 - 0.5 * power(fading, t))
        mu_next = beta_1 * (1 - 0.5 * power(fading, t + 1))
        product = power(beta_1, t) * entry(products, t)
        rate_g = rounded(learning_rate * (1 - mu) / (1 - product), g)
        rate_m = rounded(learning_rate * mu_next / (1 - product * mu_next), g)
        root = rounded(sqrt(1 - power(beta_2, t)), g)
        for j in range(dim):
            w[j] = w[j] - (rate_g * g[j] + rate_m * m[j]) / (sqrt(v[j]) / root + epsilon)


@cache
def _fading(momentum_decay: float) -> float:
    return 1 / float(root_power(1 / 0.96, momentum_decay))


@cache
def _products(fading: float) -> Table:
    """The table ends where the product has no effect or no longer changes: after some thousand entries at most."""
    parts, last, first = [np.ones(1)], 1.0, 1
    while last > _NOTHING and (faded := power(fading, np.arange(first, first + _BLOCK)))[0] > _NOTHING:
        parts.append(last * np.cumprod(1 - 0.5 * faded))
        last, first = float(parts[-1][-1]), first + _BLOCK
    table = np.concatenate(parts)
    table.flags.writeable = False
    return table
