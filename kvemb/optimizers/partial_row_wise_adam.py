"""Partial row-wise Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.optimizers.adam_family import BiasCorrected
from kvemb.optimizers.arithmetic import Count, Elements, power, rounded, sqrt, sum_of_squares
from kvemb.optimizers.base import Slot, number


@dataclass(frozen=True, repr=False)
class PartialRowWiseAdam(BiasCorrected):
    """Adam with one v per row, as FBGEMM's PARTIAL_ROWWISE_ADAM has it, so with half of Adam's state.

    Step t::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * mean(g * g)
        r = (m / (1 - beta_1 ** t)) / (sqrt(v / (1 - beta_2 ** t)) + epsilon)
        w -= learning_rate * (r + weight_decay * w)

    A row has the slots `m`, the average of gradients, and `v`, one number: the average of the row's mean squared
    gradient. While a row is in no step, it neither moves nor decays.

    Defaults are FBGEMM's, which counts steps as bias_correction="global" does.

    Args:
        learning_rate: Step size. Default: 0.01.
        epsilon: Added to the corrected root, so that nothing is divided by 0. Default: 1e-08.
        weight_decay: The strength of weight decay, which is decoupled. It acts only on the rows of a step. Default:
            0.0.
    """

    name = "partial_row_wise_adam"
    averages: ClassVar[tuple[Slot, ...]] = (Slot("m"), Slot("v", 1))

    learning_rate: float = number(0.01)
    weight_decay: float = number(0.0)

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
        epsilon: np.float64,
        weight_decay: np.float64,
    ) -> None:
        """See Optimizer."""
        square = rounded(beta_2, g) * v[0] + rounded((1 - beta_2) * (sum_of_squares(g) / dim), g)
        v[0] = square
        root = sqrt(square / (1 - power(beta_2, t)))
        rate = rounded(learning_rate / (1 - power(beta_1, t)) / (root + epsilon), g)
        stay = rounded(1 - learning_rate * weight_decay, g)
        keep = rounded(beta_1, g)
        take = rounded(1 - beta_1, g)
        for j in range(dim):
            mean = keep * m[j] + take * g[j]
            m[j] = mean
            w[j] = stay * w[j] - rate * mean
