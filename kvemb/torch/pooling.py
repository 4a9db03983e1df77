"""Bags of rows pooled, as torch.nn.functional.embedding_bag does: from the distinct rows of a batch.

The distinct keys of a batch are looked up as a small table, over which torch itself pools. So modes, weights with
their gradient, padding and second derivatives are torch's own. Bags of one id each are the rows as they are. Each
feature has a small table of its own, so a backward that leaves a feature out brings no gradients of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvemb.torch.bags import JaggedIds, Keys, joined_keys
from kvemb.torch.lookups import Wanted, distinct, divide_gradient, fitting, possible
from kvemb.torch.options import clipped
from kvemb.variable import Variable


@dataclass(frozen=True)
class Pooling:
    """How bags are pooled: mode "sum", "mean" or "max", and the options of torch.nn.EmbeddingBag."""

    mode: str = "sum"
    padding: int | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False


class Prepared:
    """Bags whose rows are to be looked up in a variable. wanted: those rows; finish() pools them.

    bags: of one feature.
    """

    def __init__(self, variable: Variable, bags: JaggedIds, how: Pooling) -> None:
        self._bags, self._how = bags, how
        self._alone = how.padding is None and not how.scale_grad_by_freq and bags.one_each
        if self._alone:
            self.wanted = Wanted(variable, bags.keys)
            return
        keys = fitting(bags.keys, variable)
        padding = possible(how.padding, keys)
        if padding is not None:
            # First of all: so it is known where it is among the distinct keys, and it is there even if no bag has it.
            keys = joined_keys([padding_beside(keys, padding), keys])
        found = distinct(keys, variable)
        self.wanted, self._counts = Wanted(variable, found.keys, padding, given=False), found.counts
        self._padding = None if padding is None else int(found.inverse[0])
        self._inverse = found.inverse if padding is None else found.inverse[1:]

    def finish(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the pooled bags (count, dim). rows: those of `wanted`."""
        bags, how = self._bags, self._how
        if how.scale_grad_by_freq:  # not left to torch, whose kernel for bags divides by another key's count
            divide_gradient(rows, self._counts)
        rows = clipped(rows, how.max_norm, how.norm_type)
        if self._alone:
            return rows if bags.weights is None else rows * bags.weights.to(rows)[:, None]
        if not len(self._inverse):  # zeros that a backward may begin with, as torch.nn's
            return rows.new_zeros(bags.count, rows.shape[1]) + rows[:0].sum(0)
        return torch.nn.functional.embedding_bag(
            self._inverse,
            rows,
            bags.offsets.to(rows.device),
            mode=how.mode,
            per_sample_weights=None if bags.weights is None else bags.weights.to(rows),
            padding_idx=self._padding,
        )


def padding_beside(keys: Keys, padding: int) -> Keys:
    """Return the padding key alone, in the memory and the dtype of keys."""
    return np.array([padding], keys.dtype) if isinstance(keys, np.ndarray) else keys.new_tensor([padding])
