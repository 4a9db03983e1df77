"""LAMB."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvemb.optimizers.adam_family import BiasCorrected, average
from kvemb.optimizers.arithmetic import Count, Elements, Number, power, rounded, sqrt, sum_of_squares, where_positive
from kvemb.optimizers.base import number
from kvemb.optimizers.formula import Function


@dataclass(frozen=True, repr=False)
class LAMB(BiasCorrected):
    """LAMB with the norms of each row, as FBGEMM has it (You and others, ICLR 2020).

    Step t::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        r = (m / (1 - beta_1 ** t)) / (sqrt(v / (1 - beta_2 ** t)) + epsilon) + weight_decay * w
        w -= learning_rate * norm(w) / norm(r) * r

    A row has the slots `m` and `v`, the averages of gradients and of their squares. While a row is in no step, it does
    not move, and m and v do not decay.

    The ratio of norms is 1 if one of them is 0, as in Keras; otherwise a row of zeros would never change. FBGEMM lacks
    this guard. Keras' norms are those of the whole tensor. Defaults are Keras'; FBGEMM's epsilon is 1e-8.

    Args:
        learning_rate: Step size, relative to the row's norm. Default: 0.001.
        epsilon: Added to the corrected root, so that nothing is divided by 0. Default: 1e-07.
        weight_decay: The strength of weight decay, which is part of r. It acts only on the rows of a step. Default:
            0.0.
    """

    name = "lamb"

    epsilon: float = number(1e-7)
    weight_decay: float = number(0.0)

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
        weight_decay: Number,
    ) -> None:
        """See Optimizer. g becomes r."""
        full = rounded(1 / (1 - power(beta_1, t)), g)
        root = rounded(sqrt(1 - power(beta_2, t)), g)
        for j in range(dim):
            g[j] = full * m[j] / (sqrt(v[j]) / root + epsilon) + weight_decay * w[j]
        of_w = sqrt(sum_of_squares(w))
        of_r = sqrt(sum_of_squares(g))
        rate = rounded(learning_rate * where_positive(of_w, where_positive(of_r, of_w / of_r, 1), 1), g)
        for j in range(dim):
            w[j] = w[j] - rate * g[j]
