"""What Adam's family shares: averages of gradients that begin at 0, corrected by a count of steps."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_choice, as_float
from kvemb.optimizers.arithmetic import Elements, rounded
from kvemb.optimizers.base import STEPS, Optimizer, Slot, number

MAX_BETA = 0.999999


@dataclass(frozen=True, repr=False)
class BiasCorrected(Optimizer):
    """An optimizer whose averages are corrected for the number of steps.

    The slot `steps` has the slots' dtype. A float32 counts up to 2 ** 24 = 16,777,216 and then stays; a float64 up to 2
    ** 53. Therefore betas are at most 0.999999: at 2 ** 24 steps corrections are then 1 to within 6e-8, one rounding of
    a float32, so it does not matter that the count stays.

    averages: its slots, without the count of steps.

    Args:
        learning_rate: Step size. Default: 0.001.
        beta_1: Decay rate of m, at most 0.999999. Default: 0.9.
        beta_2: Decay rate of v, at most 0.999999. Default: 0.999.
        epsilon: Added to the root, so that nothing is divided by 0. Default: 1e-08.
        bias_correction: What t counts. "row": the row's own steps, in its slot `steps`, one number, so that a key that
            first appears late starts like any other. "global": the variable's calls of apply_gradients, as
            torch.optim.SparseAdam counts. Rows then have no slot `steps`, but Adam's first step of a row that appears
            late is (1 - beta_1) / sqrt(1 - beta_2) times learning_rate: 3.16 times with the defaults. Default: 'row'.
    """

    averages: ClassVar[tuple[Slot, ...]] = (Slot("m"), Slot("v"))

    learning_rate: float = number(0.001)
    beta_1: float = accepts(as_float, 0.9, least=0, most=MAX_BETA)
    beta_2: float = accepts(as_float, 0.999, least=0, most=MAX_BETA)
    epsilon: float = number(1e-8)
    _: KW_ONLY
    bias_correction: Literal["row", "global"] = accepts(as_choice, "row", among=("row", "global"))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The averages, and the row's step count unless the variable counts."""
        return self.averages if self.counts_steps else (*self.averages, Slot(STEPS, 1))

    @property
    def counts_steps(self) -> bool:
        """See Optimizer."""
        return self.bias_correction == "global"


def average(
    dim: int, w: Elements, g: Elements, m: Elements, v: Elements, beta_1: np.float64, beta_2: np.float64
) -> None:
    """Take the gradient into the averages m and v, before the formula of an optimizer that need not be in one loop."""
    keep_m = rounded(beta_1, g)
    take_m = rounded(1 - beta_1, g)
    keep_v = rounded(beta_2, g)
    take_v = rounded(1 - beta_2, g)
    for j in range(dim):
        m[j] = keep_m * m[j] + take_m * g[j]
        v[j] = keep_v * v[j] + take_v * (g[j] * g[j])
