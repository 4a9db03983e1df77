"""Proximal optimizers: after the step, w is shrunk towards 0, exactly to 0 where it is small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_float
from kvemb.optimizers.arithmetic import Elements, Number, absolute, larger, sqrt, where_positive
from kvemb.optimizers.base import Optimizer, Slot, number


@dataclass(frozen=True, repr=False)
class ProximalSGD(Optimizer):
    """TensorFlow's ProximalGradientDescent (training_ops.cc; Duchi, Singer, JMLR 10, 2009).

    One step, where l1 and l2 are the regularization strengths::

        v = w - learning_rate * g
        w = sign(v) * max(abs(v) - learning_rate * l1, 0) / (1 + learning_rate * l2)

    It has no slots. TensorFlow has no default for the learning rate; this is Adagrad's.

    Args:
        learning_rate: Step size. Default: 0.01.
        l1_regularization_strength: Moves each element towards 0 by learning_rate times this, and to exactly 0 where it
            is small. Default: 0.0.
        l2_regularization_strength: Divides each element by 1 + learning_rate times this. Default: 0.0.
    """

    name = "proximal_sgd"
    slots: ClassVar[tuple[Slot, ...]] = ()

    learning_rate: float = number(0.01)
    l1_regularization_strength: float = number(0.0)
    l2_regularization_strength: float = number(0.0)

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        learning_rate: Number,
        l1_regularization_strength: Number,
        l2_regularization_strength: Number,
    ) -> None:
        """See Optimizer."""
        least = learning_rate * l1_regularization_strength
        scale = 1 + learning_rate * l2_regularization_strength
        for j in range(dim):
            v = w[j] - learning_rate * g[j]
            size = larger(0, absolute(v) - least) / scale
            w[j] = where_positive(v, size, -size)


@dataclass(frozen=True, repr=False)
class ProximalAdagrad(Optimizer):
    """TensorFlow's ProximalAdagrad (training_ops.cc; Duchi, Singer, JMLR 10, 2009).

    One step, where l1 and l2 are the regularization strengths::

        accumulator += g * g
        rate = learning_rate / sqrt(accumulator)
        v = w - rate * g
        w = sign(v) * max(abs(v) - rate * l1, 0) / (1 + rate * l2)

    A row has one slot, `accumulator`. There is no epsilon, so initial_accumulator_value must be above 0.

    Defaults are TensorFlow's, which has none for the learning rate; this is Adagrad's.

    Args:
        learning_rate: Step size. Default: 0.01.
        initial_accumulator_value: The accumulator of a new row, above 0. Default: 0.1.
        l1_regularization_strength: Moves each element towards 0 by rate times this, and to exactly 0 where it is small.
            Default: 0.0.
        l2_regularization_strength: Divides each element by 1 + rate times this. Default: 0.0.
    """

    name = "proximal_adagrad"

    learning_rate: float = number(0.01)
    initial_accumulator_value: float = accepts(
        as_float, 0.1, above=0, hint="elements without a gradient would be divided by it"
    )
    l1_regularization_strength: float = number(0.0)
    l2_regularization_strength: float = number(0.0)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The accumulator, as wide as the embedding."""
        return (Slot("accumulator", initial=self.initial_accumulator_value),)

    @staticmethod
    def formula(
        dim: int,
        w: Elements,
        g: Elements,
        accumulator: Elements,
        learning_rate: Number,
        l1_regularization_strength: Number,
        l2_regularization_strength: Number,
    ) -> None:
        """See Optimizer."""
        for j in range(dim):
            s = accumulator[j] + g[j] * g[j]
            accumulator[j] = s
            rate = learning_rate / sqrt(s)
            v = w[j] - rate * g[j]
            size = larger(0, absolute(v) - rate * l1_regularization_strength) / (1 + rate * l2_regularization_strength)
            w[j] = where_positive(v, size, -size)
