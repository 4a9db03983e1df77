"""Adagrad, with an accumulator for each element or one for each row."""

from __future__ import annotations

from dataclasses import dataclass

from kvemb.optimizers.arithmetic import Elements, Number, rounded, sqrt, sum_of_squares
from kvemb.optimizers.base import Slot, number
from kvemb.optimizers.weight_decay import WeightDecayed


@dataclass(frozen=True, repr=False)
class Adagrad(WeightDecayed):
    """Adagrad as torch.optim.Adagrad has it, without lr_decay (Duchi, Hazan, Singer, JMLR 12, 2011).

    One step::

        accumulator += g * g
        w -= learning_rate * g / (sqrt(accumulator) + epsilon)

    A row has one slot, `accumulator`. Each element has its own step size, which shrinks as its gradients add up.

    Defaults are PyTorch's. TensorFlow and Keras start the accumulator at 0.1. Keras adds epsilon inside the root;
    TensorFlow 1 has no epsilon.

    Args:
        learning_rate: Step size. Default: 0.01.
        initial_accumulator_value: The accumulator of a new row. Default: 0.0.
        epsilon: Added to the root, so that nothing is divided by 0. Default: 1e-10.
    """

    name = "adagrad"

    learning_rate: float = number(0.01)
    initial_accumulator_value: float = number(0.0)
    epsilon: float = number(1e-10)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The accumulator, as wide as the embedding."""
        return (Slot("accumulator", initial=self.initial_accumulator_value),)

    @staticmethod
    def formula(
        dim: int, w: Elements, g: Elements, accumulator: Elements, learning_rate: Number, epsilon: Number
    ) -> None:
        """See Optimizer."""
        for j in range(dim):
            s = accumulator[j] + g[j] * g[j]
            accumulator[j] = s
            w[j] = w[j] - learning_rate * g[j] / (sqrt(s) + epsilon)


@dataclass(frozen=True, repr=False)
class RowWiseAdagrad(Adagrad):
    """Row-wise Adagrad, as FBGEMM's EXACT_ROWWISE_ADAGRAD and TorchRec's RowWiseAdagrad have it.

    One step::

        accumulator += mean(g * g)
        w -= learning_rate / (sqrt(accumulator) + epsilon) * g

    A row has one slot, `accumulator`, which is one number instead of dim. The mean is over the row, summed in float64
    (arithmetic.sum_of_squares).

    Coupled weight decay is part of g in the mean, too, as in FBGEMM's "L2" mode. Defaults are TorchRec's
    (torchrec/optim/rowwise_adagrad.py); FBGEMM's epsilon is 1e-8.
    """

    name = "row_wise_adagrad"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The accumulator, one number."""
        return (Slot("accumulator", 1, self.initial_accumulator_value),)

    @staticmethod
    def formula(
        dim: int, w: Elements, g: Elements, accumulator: Elements, learning_rate: Number, epsilon: Number
    ) -> None:
        """See Optimizer."""
        s = accumulator[0] + rounded(sum_of_squares(g) / dim, g)
        accumulator[0] = s
        rate = learning_rate / (sqrt(s) + epsilon)
        for j in range(dim):
            w[j] = w[j] - rate * g[j]
