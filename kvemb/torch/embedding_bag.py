"""EmbeddingBag: torch.nn.EmbeddingBag over a variable."""

from __future__ import annotations

from typing import Any

import torch

from kvemb.store import Store
from kvemb.torch.bags import bags_of
from kvemb.torch.module import variable_of
from kvemb.torch.options import check_mode, check_names, check_norm, check_padding
from kvemb.torch.pooling import BagLookup, Pooling
from kvemb.torch.table_module import TableModule
from kvemb.torch.weights import Destination
from kvemb.variable import Variable


class EmbeddingBag(TableModule):
    """Pools bags of rows by key, as torch.nn.EmbeddingBag does by index. See RowsModule for fused, check_finite,
    output_dtype, and Embedding for variable, dim, store, max_norm, scale_grad_by_freq, sparse and other arguments.

    mode: "mean", "sum" or "max". include_last_offset: the last offset is the number of ids. padding_idx: a key that is
    left out of the bags, and not counted in a mean. A row counts as used once per batch, however often it is in the
    bags, unless every bag has exactly one id.
    """

    def __init__(
        self,
        variable: Variable | str | None = None,
        dim: int | None = None,
        *,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = True,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        store: Store | None = None,
        fused: bool = False,
        check_finite: bool = False,
        output_dtype: torch.dtype | None = None,
        **arguments: Any,
    ) -> None:
        check_names(arguments)
        padding, norm = check_padding(padding_idx), check_norm(max_norm, norm_type)
        self.pooling = Pooling(check_mode(mode), padding, *norm, bool(scale_grad_by_freq))
        if self.pooling.scale_grad_by_freq and mode == "max":
            raise ValueError("scale_grad_by_freq is not supported with mode='max'")
        self.variable = variable_of(variable, dim, store, arguments)
        super().__init__([self.variable], fused, check_finite, output_dtype)
        self.include_last_offset, self.sparse = bool(include_last_offset), bool(sparse)

    def destinations(self) -> dict[str, Destination]:
        """Return the destination of the weight of a torch.nn.EmbeddingBag."""
        return {"weight": Destination(self.variable, self.pooling.padding)}

    @torch.compiler.disable
    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the bags, (count, dim), on the device of ids. An empty bag is zeros.

        ids: keys (n,), and offsets (count,), where each bag begins, from 0 and ascending; or ids (count, m) without
        offsets. per_sample_weights: floats of the shape of ids, for mode "sum"; they may require a gradient. Raises
        TypeError or ValueError before anything is looked up; RuntimeError if this module cannot be trained now; what
        Store.lookup raises.
        """
        bags = bags_of(
            ids,
            offsets,
            per_sample_weights,
            include_last_offset=self.include_last_offset,
            mode=self.pooling.mode,
        )
        lookup = BagLookup(self.variable, bags, self.pooling)
        (rows,) = self.rows([lookup.request])
        return self.as_output(lookup.pool(rows), bags.device)
