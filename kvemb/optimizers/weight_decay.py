"""The two forms of weight decay. It acts only on the rows of a step ("lazy")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_bool
from kvemb.optimizers.arithmetic import Elements, Number, rounded
from kvemb.optimizers.base import Optimizer, number
from kvemb.optimizers.formula import Function


def coupled(dim: int, w: Elements, g: Elements, weight_decay: Number) -> None:
    """Add weight_decay * w to the gradient: the derivative of an L2 penalty."""
    for j in range(dim):
        g[j] = g[j] + weight_decay * w[j]


def decoupled(dim: int, w: Elements, g: Elements, learning_rate: np.float64, weight_decay: np.float64) -> None:
    """Scale w by 1 - learning_rate * weight_decay (Loshchilov, Hutter, ICLR 2019)."""
    keep = rounded(1 - learning_rate * weight_decay, g)
    for j in range(dim):
        w[j] = w[j] * keep


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightDecayed(Optimizer):
    """An optimizer with weight decay in either form.

    Args:
        weight_decay: The strength of weight decay. It acts only on the rows of a step ("lazy"). 0: none. Default: 0.0.
        decoupled: The form of weight decay. False adds weight_decay * w to the gradient, after clipping, like
            torch.optim.Adam (the derivative of an L2 penalty). True scales w by 1 - learning_rate * weight_decay before
            the step, like torch.optim.AdamW. Default: False.
    """

    weight_decay: float = number(0.0)
    decoupled: bool = accepts(as_bool, False)

    def decay_formulas(self) -> tuple[Function, ...]:
        """See Optimizer."""
        if self.weight_decay == 0:
            return ()
        return (decoupled if self.decoupled else coupled,)
