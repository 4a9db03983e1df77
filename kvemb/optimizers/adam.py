"""Adam and its close variants AdamW and AMSGrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.optimizers.arithmetic import Count, Elements, Number, larger, power, rounded, sqrt
from kvemb.optimizers.base import Slot
from kvemb.optimizers.bias_correction import BiasCorrected
from kvemb.optimizers.formula import Function
from kvemb.optimizers.weight_decay import WeightDecayed, decoupled


@dataclass(frozen=True, repr=False)
class Adam(WeightDecayed, BiasCorrected):
    """Adam as torch.optim.Adam has it, applied only to the rows of a step (Kingma, Ba, ICLR 2015, without epsilon-hat).

    Step t::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        w -= learning_rate / (1 - beta_1 ** t) * m / (sqrt(v) / sqrt(1 - beta_2 ** t) + epsilon)

    A row has the slots `m` and `v`, the averages of gradients and of their squares. With bias_correction="row" it also
    has `steps`, one number, which is t. While a row is in no step, it does not move, and m and v do not decay:
    torch.optim.Adam would move it.

    torch.optim.SparseAdam and Keras add epsilon before the correction, so they differ by epsilon from
    bias_correction="global". Defaults are PyTorch's. The weight decay of FBGEMM's Adam is that of AdamW.

    Args:
        learning_rate: Step size. Default: 0.001.
        beta_1: Decay rate of m, at most 0.999999. Default: 0.9.
        beta_2: Decay rate of v, at most 0.999999. Default: 0.999.
        epsilon: Added to the corrected root, so that nothing is divided by 0. Default: 1e-08.
    """

    name: ClassVar[str] = "adam"

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The averages m of gradients and v of their squares, and the row's step count."""
        return self.with_count(Slot("m"), Slot("v"))

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
    ) -> None:
        """See Optimizer."""
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


@dataclass(frozen=True, repr=False)
class AdamW(BiasCorrected):
    """Adam with decoupled weight decay, as torch.optim.AdamW has it (Loshchilov, Hutter, ICLR 2019).

    One step::

        w *= 1 - learning_rate * weight_decay
        then Adam's step

    The slots are Adam's: `m`, `v`, and with bias_correction="row" also `steps`, one number. While a row is in no step,
    it neither moves nor decays.

    Defaults are PyTorch's. Keras' weight decay is 0.004.

    Args:
        learning_rate: Step size. Default: 0.001.
        beta_1: Decay rate of m, at most 0.999999. Default: 0.9.
        beta_2: Decay rate of v, at most 0.999999. Default: 0.999.
        epsilon: Added to the corrected root, so that nothing is divided by 0. Default: 1e-08.
        weight_decay: The strength of weight decay. It acts only on the rows of a step. Default: 0.01.
    """

    name: ClassVar[str] = "adamw"

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    formula: ClassVar[Function] = staticmethod(Adam.formula)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of Adam."""
        return self.with_count(Slot("m"), Slot("v"))

    def decay_formulas(self) -> tuple[Function, ...]:
        """See Optimizer."""
        return (decoupled,) if self.weight_decay else ()


@dataclass(frozen=True, repr=False)
class AMSGrad(WeightDecayed, BiasCorrected):
    """AMSGrad as torch.optim.Adam(amsgrad=True) has it (Reddi, Kale, Kumar, ICLR 2018).

    Step t::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        v_max = max(v_max, v)
        w -= learning_rate / (1 - beta_1 ** t) * m / (sqrt(v_max) / sqrt(1 - beta_2 ** t) + epsilon)

    A row has the slots `m`, `v` and `v_max`. With bias_correction="row" it also has `steps`, one number, which is t.
    While a row is in no step, it does not move, and m and v do not decay.

    The maximum is taken before the bias correction. Defaults are PyTorch's. Keras adds epsilon before the correction.

    Args:
        learning_rate: Step size. Default: 0.001.
        beta_1: Decay rate of m, at most 0.999999. Default: 0.9.
        beta_2: Decay rate of v, at most 0.999999. Default: 0.999.
        epsilon: Added to the corrected root, so that nothing is divided by 0. Default: 1e-08.
    """

    name: ClassVar[str] = "amsgrad"

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The averages m and v as in Adam, the largest v, and the row's step count."""
        return self.with_count(Slot("m"), Slot("v"), Slot("v_max"))

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
    ) -> None:
        """See Optimizer."""
        rate = rounded(learning_rate / (1 - power(beta_1, t)), g)
        root = rounded(sqrt(1 - power(beta_2, t)), g)
        keep_m = rounded(beta_1, g)
        take_m = rounded(1 - beta_1, g)
        keep_v = rounded(beta_2, g)
        take_v = rounded(1 - beta_2, g)
        for j in range(dim):
            square = keep_v * v[j] + take_v * (g[j] * g[j])
            v[j] = square
            v_max[j] = larger(v_max[j], square)
        for j in range(dim):
            mean = keep_m * m[j] + take_m * g[j]
            m[j] = mean
            w[j] = w[j] - rate * mean / (sqrt(v_max[j]) / root + epsilon)
