"""Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.optimizers.arithmetic import Elements, Number, power, rounded, sqrt
from kvemb.optimizers.base import Optimizer, Slot, check_at_most, check_not_negative

MOST_BETA = 0.999999


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam as torch.optim.Adam has it, on the rows of a step alone (Kingma, Ba, ICLR 2015, without epsilon-hat).

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g g;
    w -= learning_rate / (1 - beta_1 ** t) * m / (sqrt(v) / sqrt(1 - beta_2 ** t) + epsilon).

    t is the row's own count of steps, kept in the slot `steps`, so a key that first appears late starts as any other
    did. torch.optim.SparseAdam counts calls and adds epsilon before the correction: it differs by epsilon alone on rows
    that every call touches, and takes a first step of (1 - beta_1) / sqrt(1 - beta_2) times learning_rate, 3.16 times
    with the defaults, on a row that appears late. Rows that are not in a step do not decay.

    `steps` is of the slots' dtype. A float32 counts up to 2 ** 24 = 16,777,216 and then stays; a float64 up to 2 ** 53.
    Betas are therefore at most 0.999999: both corrections are then 1 to within 6e-8 at 2 ** 24 steps, one rounding of
    a float32, and a count that stays changes nothing.
    """

    name: ClassVar[str] = "adam"

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_not_negative(self, "learning_rate", "beta_1", "beta_2", "epsilon")
        check_at_most(self, MOST_BETA, "beta_1", "beta_2")

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The averages m of gradients and v of their squares, and how many steps the row took."""
        return (Slot("m"), Slot("v"), Slot("steps", 1))

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        m: Elements,
        v: Elements,
        steps: Elements,
        learning_rate: np.float64,
        beta_1: np.float64,
        beta_2: np.float64,
        epsilon: Number,
    ) -> None:
        """See Optimizer."""
        t = steps[0] + 1
        steps[0] = t
        rate = rounded(learning_rate / (1 - power(beta_1, t)), g)
        root = rounded(sqrt(1 - power(beta_2, t)), g)
        keep_m = rounded(beta_1, g)
        take_m = rounded(1 - beta_1, g)
        keep_v = rounded(beta_2, g)
        take_v = rounded(1 - beta_2, g)
        for j in range(dim):
            mean = keep_m * m[j] + take_m * g[j]
            square = keep_v * v[j] + take_v * (g[j] * g[j])
            m[j] = mean
            v[j] = square
            w[j] = w[j] - rate * mean / (sqrt(square) / root + epsilon)
