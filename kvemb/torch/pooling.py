"""Bags of rows pooled, as torch.nn.functional.embedding_bag does: from the distinct rows of a batch.

The distinct keys of a batch are looked up as one small table, over which torch itself pools. So modes, weights with
their gradient, padding and second derivatives are torch's own. Bags of one id each are the rows as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvemb.torch.bags import Bags, Keys, joined_keys
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
    """Bags of one variable, of which the rows are wanted. finish() pools the rows.

    bags: of each feature of the variable; the features share one small table.
    """

    def __init__(self, variable: Variable, bags: list[Bags], how: Pooling) -> None:
        self._bags, self._how = bags, how
        self._alone = how.padding is None and not how.scale_grad_by_freq and all(each.one_each for each in bags)
        if self._alone:
            self.wanted = [Wanted(variable, each.keys) for each in bags]
            return
        keys = joined_keys([fitting(each.keys, variable) for each in bags])
        padding = possible(how.padding, keys)
        if padding is not None:
            # First of all: so it is known where it is among the distinct keys, and it is there even if no bag has it.
            keys = joined_keys([padding_beside(keys, padding), keys])
        found = distinct(keys, variable)
        self.wanted, self._counts = [Wanted(variable, found.keys, padding, given=False)], found.counts
        self._padding = None if padding is None else int(found.inverse[0])
        parts = found.inverse if padding is None else found.inverse[1:]
        self._inverse = list(parts.split([len(each.keys) for each in bags]))

    def finish(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return each feature's bags (count, dim). rows: of what is wanted."""
        if self._how.scale_grad_by_freq:  # not left to torch, whose kernel for bags divides by another key's count
            divide_gradient(rows[0], self._counts)
        rows = [clipped(part, self._how.max_norm, self._how.norm_type) for part in rows]
        if self._alone:
            return [
                part if each.weights is None else part * each.weights.to(part)[:, None]
                for part, each in zip(rows, self._bags, strict=True)
            ]
        (table,) = rows
        return [self._pool(table, inverse, each) for inverse, each in zip(self._inverse, self._bags, strict=True)]

    def _pool(self, table: torch.Tensor, inverse: torch.Tensor, bags: Bags) -> torch.Tensor:
        if not len(inverse):  # zeros that a backward may begin with, as torch.nn's
            return table.new_zeros(bags.count, table.shape[1]) + table[:0].sum(0)
        return torch.nn.functional.embedding_bag(
            inverse,
            table,
            bags.offsets.to(table.device),
            mode=self._how.mode,
            per_sample_weights=None if bags.weights is None else bags.weights.to(table),
            padding_idx=self._padding,
        )


def padding_beside(keys: Keys, padding: int) -> Keys:
    """Return the padding key alone, in the memory and the dtype of keys."""
    return np.array([padding], keys.dtype) if isinstance(keys, np.ndarray) else keys.new_tensor([padding])
