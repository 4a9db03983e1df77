"""Embedding: torch.nn.Embedding over a variable."""

from __future__ import annotations

from typing import Any

import torch

from kvemb.store import Store
from kvemb.torch.bags import keys_where_they_are
from kvemb.torch.lookups import Wanted, distinct, divide_gradient
from kvemb.torch.module import variable_of
from kvemb.torch.options import check_names, check_norm, check_padding, clipped
from kvemb.torch.table_module import TableModule
from kvemb.torch.weights import Destination
from kvemb.variable import Variable


class Embedding(TableModule):
    """Rows by key, as torch.nn.Embedding gives them by index. See RowsModule for fused, check_finite, output_dtype.

    variable: a Variable, or a name; then dim, store (None: the default one) and all other arguments are those of
    Store.get_variable, such as optimizer and initializer (None: zeros, where torch.nn's rows are normal).
    padding_idx: a key (a negative one, too) whose row is zeros: it is not looked up, made or trained.
    max_norm, norm_type: rows of a larger norm are scaled to it in the result; the table keeps them, unlike torch.nn's.
    scale_grad_by_freq: as torch.nn's; a row then counts as used once in a batch. sparse: accepted; a gradient is always
    of the rows that were used.
    load_state_dict takes the weight of a torch.nn.Embedding, too: row i becomes the row of key i. from_pretrained makes
    a module of such a weight.
    Raises TypeError or ValueError for an argument, and what get_variable raises.
    """

    def __init__(
        self,
        variable: Variable | str | None = None,
        dim: int | None = None,
        *,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = True,
        store: Store | None = None,
        fused: bool = False,
        check_finite: bool = False,
        output_dtype: torch.dtype | None = None,
        **arguments: Any,
    ) -> None:
        check_names(arguments)
        padding, norm = check_padding(padding_idx), check_norm(max_norm, norm_type)
        self.variable = variable_of(variable, dim, store, arguments)
        super().__init__([self.variable], fused, check_finite, output_dtype)
        self.padding_idx, (self.max_norm, self.norm_type) = padding, norm
        self.scale_grad_by_freq, self.sparse = bool(scale_grad_by_freq), bool(sparse)

    def destinations(self) -> dict[str, Destination]:
        """Return where a weight of torch.nn.Embedding goes."""
        return {"weight": Destination(self.variable, self.padding_idx)}

    @torch.compiler.disable
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids, ids.shape + (dim,), on the device of ids. A missing key reads as its initial row.

        ids: integers of any shape; keys. A backward brings the gradients of the rows, and deferred steps wait for
        kvemb.torch.Optimizer.step(). Raises TypeError for ids; RuntimeError if this module cannot be trained now; what
        Store.lookup raises.
        """
        keys = keys_where_they_are(ids).reshape(-1)
        if self.scale_grad_by_freq and torch.is_grad_enabled():
            out = self._scaled_by_frequency(keys)
        else:
            (out,) = self.rows([Wanted(self.variable, keys, self.padding_idx)])
        out = clipped(out, self.max_norm, self.norm_type)
        return self.finished(out.view(*ids.shape, self.variable.dim), ids.device)

    def _scaled_by_frequency(self, keys: Any) -> torch.Tensor:
        """Return the rows of keys; the gradient of one is divided by how often it occurs."""
        found = distinct(keys, self.variable)
        (rows,) = self.rows([Wanted(self.variable, found.keys, self.padding_idx, given=False)])
        divide_gradient(rows, found.counts)
        return torch.nn.functional.embedding(found.inverse, rows)
