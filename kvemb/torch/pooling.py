"""Pools bags of rows as torch.nn.functional.embedding_bag does, from the distinct rows of a batch.

The distinct keys of a batch are looked up as a small table, over which torch itself pools. So modes, weights and their
gradients and second derivatives are torch's own. Bags of one id each are returned as the rows. Each feature has its own
small table, so a backward pass that does not reach a feature collects no gradients for its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvemb.torch.bags import JaggedIds, not_padding
from kvemb.torch.lookups import RowRequest, distinct, divide_gradient
from kvemb.torch.options import clipped
from kvemb.variable import Variable


@dataclass(frozen=True)
class Pooling:
    """How bags are pooled: mode "sum", "mean" or "max", and the options of torch.nn.EmbeddingBag."""

    mode: str = "sum"
    padding: int | str | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False


class BagLookup:
    """The bags of one feature. request: the rows to look up, from which pool() makes the result."""

    def __init__(self, variable: Variable, bags: JaggedIds, how: Pooling) -> None:
        self._bags, self._how = bags, how
        self._alone = how.padding is None and not how.scale_grad_by_freq and bags.one_each
        if self._alone:
            self.request = RowRequest(variable, bags.keys)
            return
        if (chosen := not_padding(bags.keys, how.padding)) is not None:
            self._bags = bags = bags.only(chosen)
        found = distinct(bags.keys, variable)
        self.request = RowRequest(variable, found.keys, unchanged=False, counts=found.counts)
        self._counts, self._inverse = found.counts, found.inverse

    def pool(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the pooled bags (count, dim). rows: those of `request`."""
        bags, how = self._bags, self._how
        if how.scale_grad_by_freq:  # not by torch, whose kernel for bags divides by the count of a wrong key
            divide_gradient(rows, self._counts)
        rows = clipped(rows, how.max_norm, how.norm_type)
        if self._alone:
            return rows if bags.weights is None else rows * bags.weights.to(rows)[:, None]
        if not len(self._inverse):  # zeros with a gradient function, as torch.nn returns
            zero = rows[:0].sum() if bags.weights is None else rows[:0].sum() + bags.weights.to(rows).sum()
            return rows.new_zeros(bags.count, rows.shape[1]) + zero
        return torch.nn.functional.embedding_bag(
            self._inverse,
            rows,
            bags.offsets.to(rows.device),
            mode=how.mode,
            per_sample_weights=None if bags.weights is None else bags.weights.to(rows),
        )
