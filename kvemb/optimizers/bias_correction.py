"""Bias correction of averages that began at 0, by a step count: each row's own, or the variable's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvemb.checks.brief import brief
from kvemb.optimizers.base import STEPS, Optimizer, Slot
from kvemb.optimizers.field_checks import check_at_most

MAX_BETA = 0.999999


@dataclass(frozen=True, kw_only=True, repr=False)
class BiasCorrected(Optimizer):
    """An optimizer whose averages are corrected for the number of steps.

    The slot `steps` has the slots' dtype. A float32 counts up to 2 ** 24 = 16,777,216 and then stays; a float64 up to 2
    ** 53. Therefore betas are at most 0.999999: at 2 ** 24 steps corrections are then 1 to within 6e-8, one rounding of
    a float32, so it does not matter that the count stays.

    Args:
        bias_correction: What t counts. "row": the row's own steps, in its slot `steps`, so that a key that first
            appears late starts like any other. "global": the variable's calls of apply_gradients, as
            torch.optim.SparseAdam counts. Rows then have no slot `steps`, but Adam's first step of a row that appears
            late is (1 - beta_1) / sqrt(1 - beta_2) times learning_rate: 3.16 times with the defaults. Default: 'row'.
    """

    bias_correction: Literal["row", "global"] = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias_correction not in ("row", "global"):
            what = f"{type(self).__name__} bias_correction"
            raise ValueError(f"{what} must be 'row' or 'global', got {brief(self.bias_correction)}")
        check_at_most(self, MAX_BETA, "beta_1", "beta_2")

    @property
    def counts_steps(self) -> bool:
        """See Optimizer."""
        return self.bias_correction == "global"

    def with_count(self, *slots: Slot) -> tuple[Slot, ...]:
        """Return these slots, and the slot of the row's step count if there is one.

        Args:
            *slots: The optimizer's other slots.

        Returns:
            The slots in their order in a row.
        """
        return slots if self.counts_steps else (*slots, Slot(STEPS, 1))
