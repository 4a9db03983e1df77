"""Lion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.optimizers.arithmetic import Elements, rounded, where_positive
from kvemb.optimizers.base import Optimizer, Slot, number


@dataclass(frozen=True, repr=False)
class Lion(Optimizer):
    """Lion as Keras has it (Chen and others, NeurIPS 2023).

    One step::

        w -= learning_rate * (sign(beta_1 * m + (1 - beta_1) * g) + weight_decay * w)
        m = beta_2 * m + (1 - beta_2) * g

    A row has one slot, `m`, the average of gradients. Every element of a row in a step moves by the learning rate, even
    if its gradient is 0, as long as m is not 0. While a row is in no step, it neither moves nor decays.

    Weight decay is decoupled. Defaults are Keras'.

    Args:
        learning_rate: The size of every element's step. Default: 0.001.
        beta_1: The share of m in the step's direction. Default: 0.9.
        beta_2: Decay rate of m. Default: 0.99.
        weight_decay: The strength of weight decay. It acts only on the rows of a step. Default: 0.0.
    """

    name = "lion"
    slots: ClassVar[tuple[Slot, ...]] = (Slot("m"),)

    learning_rate: float = number(0.001)
    beta_1: float = number(0.9)
    beta_2: float = number(0.99)
    weight_decay: float = number(0.0)

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        m: Elements,
        learning_rate: np.float64,
        beta_1: np.float64,
        beta_2: np.float64,
        weight_decay: np.float64,
    ) -> None:
        """See Optimizer."""
        rate = rounded(learning_rate, g)
        stay = rounded(1 - learning_rate * weight_decay, g)
        keep_c = rounded(beta_1, g)
        take_c = rounded(1 - beta_1, g)
        keep_m = rounded(beta_2, g)
        take_m = rounded(1 - beta_2, g)
        for j in range(dim):
            c = keep_c * m[j] + take_c * g[j]
            m[j] = keep_m * m[j] + take_m * g[j]
            w[j] = stay * w[j] - where_positive(c, rate, where_positive(-c, -rate, c))
