"""Adam and its close variants AdamW and AMSGrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_bool
from kvemb.optimizers.adam_family import BiasCorrected, average
from kvemb.optimizers.arithmetic import Count, Elements, Number, larger, power, rounded, sqrt, where_positive
from kvemb.optimizers.base import Slot, number
from kvemb.optimizers.formula import Function
from kvemb.optimizers.weight_decay import WeightDecayed, decoupled


@dataclass(frozen=True, kw_only=True, repr=False)
class EpsilonPlaced(BiasCorrected):
    """An optimizer that divides by a root, to which epsilon is added after or before the bias correction.

    Args:
        epsilon_hat: Where epsilon is added. False: to the corrected root, like torch.optim.Adam. True: to the root
            before the correction, like torch.optim.SparseAdam, Keras and TensorFlow. TensorFlow's documentation calls
            this epsilon "epsilon hat". Default: False.
    """

    epsilon_hat: bool = accepts(as_bool, False)


@dataclass(frozen=True, repr=False)
class Adam(WeightDecayed, EpsilonPlaced):
    """Adam as torch.optim.Adam has it, applied only to the rows of a step (Kingma, Ba, ICLR 2015).

    Step t::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        w -= learning_rate / (1 - beta_1 ** t) * m / (sqrt(v) / sqrt(1 - beta_2 ** t) + epsilon)

    With epsilon_hat=True::

        w -= learning_rate * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t) * m / (sqrt(v) + epsilon)

    A row has the slots `m` and `v`, the averages of gradients and of their squares. While a row is in no step, it does
    not move, and m and v do not decay: torch.optim.Adam would move it.

    torch.optim.SparseAdam is Adam(bias_correction="global", epsilon_hat=True), and so is Keras' Adam if every row is in
    every step. Defaults are PyTorch's; Keras' epsilon is 1e-7. The weight decay of FBGEMM's Adam is that of AdamW.
    """

    name = "adam"

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
        epsilon_hat: Number,
    ) -> None:
        """See Optimizer."""
        rate = rounded(learning_rate / (1 - power(beta_1, t)), g)
        root = rounded(sqrt(1 - power(beta_2, t)), g)
        small = where_positive(epsilon_hat, epsilon / root, epsilon)
        keep_m = rounded(beta_1, g)
        take_m = rounded(1 - beta_1, g)
        keep_v = rounded(beta_2, g)
        take_v = rounded(1 - beta_2, g)
        for j in range(dim):  # in one loop, which is quicker than `average` and another
            mean = keep_m * m[j] + take_m * g[j]
            square = keep_v * v[j] + take_v * (g[j] * g[j])
            m[j] = mean
            v[j] = square
            w[j] = w[j] - rate * mean / (sqrt(square) / root + small)


@dataclass(frozen=True, repr=False)
class AdamW(EpsilonPlaced):
    """Adam with decoupled weight decay, as torch.optim.AdamW has it (Loshchilov, Hutter, ICLR 2019).

    One step::

        w *= 1 - learning_rate * weight_decay
        then Adam's step

    The slots are Adam's. While a row is in no step, it neither moves nor decays.

    Defaults are PyTorch's. Keras has epsilon_hat=True, and a weight decay of 0.004.

    Args:
        weight_decay: The strength of weight decay. It acts only on the rows of a step. Default: 0.01.
    """

    name = "adamw"

    weight_decay: float = number(0.01)

    formula: ClassVar[Function] = staticmethod(Adam.formula)

    def decay_formulas(self) -> tuple[Function, ...]:
        """See Optimizer."""
        return (decoupled,) if self.weight_decay else ()


@dataclass(frozen=True, repr=False)
class AMSGrad(WeightDecayed, EpsilonPlaced):
    """AMSGrad as torch.optim.Adam(amsgrad=True) has it (Reddi, Kale, Kumar, ICLR 2018).

    Step t::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        v_max = max(v_max, v)
        w -= learning_rate / (1 - beta_1 ** t) * m / (sqrt(v_max) / sqrt(1 - beta_2 ** t) + epsilon)

    With epsilon_hat=True::

        w -= learning_rate * sqrt(1 - beta_2 ** t) / (1 - beta_1 ** t) * m / (sqrt(v_max) + epsilon)

    A row has the slots `m`, `v` and `v_max`. While a row is in no step, it does not move, and m and v do not decay.

    The maximum is taken before the bias correction. Defaults are PyTorch's. Keras has epsilon_hat=True.
    """

    name = "amsgrad"
    averages: ClassVar[tuple[Slot, ...]] = (Slot("m"), Slot("v"), Slot("v_max"))

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
        v_max: Elements,
        t: Count,
        learning_rate: np.float64,
        beta_1: np.float64,
        beta_2: np.float64,
        epsilon: Number,
        epsilon_hat: Number,
    ) -> None:
        """See Optimizer."""
        rate = rounded(learning_rate / (1 - power(beta_1, t)), g)
        root = rounded(sqrt(1 - power(beta_2, t)), g)
        small = where_positive(epsilon_hat, epsilon / root, epsilon)
        for j in range(dim):
            most = larger(v_max[j], v[j])
            v_max[j] = most
            w[j] = w[j] - rate * m[j] / (sqrt(most) / root + small)
