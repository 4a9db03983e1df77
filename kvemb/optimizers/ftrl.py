"""Ftrl: follow the regularized leader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_float
from kvemb.optimizers.arithmetic import Elements, Number, larger, root_power, rounded, smaller, sqrt, where_positive
from kvemb.optimizers.base import Optimizer, Slot, number
from kvemb.optimizers.formula import Function


@dataclass(frozen=True, repr=False)
class Ftrl(Optimizer):
    """Ftrl-proximal as Keras and TensorFlow have it, without beta and shrinkage (McMahan and others, KDD 2013).

    One step, where n is the slot `accumulator`, z the slot `linear`, p is learning_rate_power, and l1 and l2 are the
    regularization strengths::

        n' = n + g * g
        z += g - (n' ** -p - n ** -p) / learning_rate * w
        w = (clip(z, -l1, l1) - z) / (n' ** -p / learning_rate + 2 * l2)
        n = n'

    Where this divides by 0, w does not change.

    w is calculated from n and z only. So for a new row, and whenever upsert or accum sets w, z is set such that a step
    with a gradient of 0 keeps w. A new learning rate scales a row at its next step, as in TensorFlow.

    Defaults are Keras'. A p other than -0.5 costs a hundred times as much, about 60 ns for each power.

    Args:
        learning_rate: Step size, above 0. Default: 0.001.
        learning_rate_power: p, at most 0. It controls how the step size falls as gradients add up; -0.5 is Adagrad's
            square root. Default: -0.5.
        initial_accumulator_value: n of a new row. Default: 0.1.
        l1_regularization_strength: Elements of w become 0 if their z is between -l1 and l1. Default: 0.0.
        l2_regularization_strength: Shrinks w towards 0. Default: 0.0.
    """

    name = "ftrl"

    learning_rate: float = accepts(as_float, 0.001, above=0, hint="Ftrl divides by it")
    learning_rate_power: float = accepts(as_float, -0.5, most=0)
    initial_accumulator_value: float = number(0.1)
    l1_regularization_strength: float = number(0.0)
    l2_regularization_strength: float = number(0.0)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots `accumulator` (n) and `linear` (z)."""
        return (Slot("accumulator", initial=self.initial_accumulator_value), Slot("linear"))

    @property
    def exponent(self) -> float:
        """-p."""
        return -self.learning_rate_power

    def own_formulas(self) -> tuple[Function, ...]:
        """See Optimizer."""
        return (self.formula if self.learning_rate_power == -0.5 else self._formula_of_any_power,)

    @property
    def match(self) -> Function:  # type: ignore[override]
        """See Optimizer."""
        return self._linear_of if self.learning_rate_power == -0.5 else self._linear_of_any_power

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        accumulator: Elements,
        linear: Elements,
        learning_rate: Number,
        l1_regularization_strength: Number,
        l2_regularization_strength: Number,
    ) -> None:
        """See Optimizer."""
        l1 = l1_regularization_strength
        least = 2 * l2_regularization_strength
        for j in range(dim):
            n = accumulator[j] + g[j] * g[j]
            root = sqrt(n)
            z = linear[j] + (g[j] - (root - sqrt(accumulator[j])) / learning_rate * w[j])
            scale = root / learning_rate + least
            accumulator[j] = n
            linear[j] = z
            w[j] = where_positive(scale, (larger(-l1, smaller(l1, z)) - z) / scale, w[j])

    @staticmethod
    def _formula_of_any_power(
        dim: int,
        w: Elements,
        g: Elements,
        accumulator: Elements,
        linear: Elements,
        learning_rate: Number,
        exponent: np.float64,
        l1_regularization_strength: Number,
        l2_regularization_strength: Number,
    ) -> None:
        """See Optimizer."""
        l1 = l1_regularization_strength
        least = 2 * l2_regularization_strength
        for j in range(dim):
            n = accumulator[j] + g[j] * g[j]
            root = rounded(root_power(n, exponent), g)
            before = rounded(root_power(accumulator[j], exponent), g)
            z = linear[j] + (g[j] - (root - before) / learning_rate * w[j])
            scale = root / learning_rate + least
            accumulator[j] = n
            linear[j] = z
            w[j] = where_positive(scale, (larger(-l1, smaller(l1, z)) - z) / scale, w[j])

    @staticmethod
    def _linear_of(
        dim: int,
        w: Elements,
        g: Elements,
        accumulator: Elements,
        linear: Elements,
        learning_rate: Number,
        l1_regularization_strength: Number,
        l2_regularization_strength: Number,
    ) -> None:
        """Set z such that a step with a gradient of 0 keeps w."""
        l1 = l1_regularization_strength
        for j in range(dim):
            scale = sqrt(accumulator[j]) / learning_rate + 2 * l2_regularization_strength
            linear[j] = -(scale * w[j]) - where_positive(w[j], l1, where_positive(-w[j], -l1, 0))

    @staticmethod
    def _linear_of_any_power(
        dim: int,
        w: Elements,
        g: Elements,
        accumulator: Elements,
        linear: Elements,
        learning_rate: Number,
        exponent: np.float64,
        l1_regularization_strength: Number,
        l2_regularization_strength: Number,
    ) -> None:
        """Set z such that a step with a gradient of 0 keeps w."""
        l1 = l1_regularization_strength
        for j in range(dim):
            root = rounded(root_power(accumulator[j], exponent), g)
            scale = root / learning_rate + 2 * l2_regularization_strength
            linear[j] = -(scale * w[j]) - where_positive(w[j], l1, where_positive(-w[j], -l1, 0))
