"""Embedding: torch.nn.Embedding over a variable."""

from __future__ import annotations

from typing import Any

import torch

from kvemb.store import Store
from kvemb.torch.bags import keys_on_their_device
from kvemb.torch.lookups import RowRequest, distinct, divide_gradient
from kvemb.torch.module import variable_of
from kvemb.torch.options import check_names, check_norm, check_padding, clipped
from kvemb.torch.table_module import TableModule
from kvemb.torch.weights import Destination
from kvemb.variable import Variable


class Embedding(TableModule):
    """Looks up rows by key, as torch.nn.Embedding does by index. See RowsModule for fused, check_finite, output_dtype.

    variable: a Variable, or a name; with a name, dim, store (None: the default one) and all other arguments are those
    of Store.get_variable, such as optimizer and initializer (None: zeros, while torch.nn's rows are normal).
    padding_idx: a key, which may be negative, whose row is zeros: it is not looked up, created or trained. max_norm,
    norm_type: rows with a larger norm are scaled to it in the result; unlike torch.nn's, the table does not change.
    scale_grad_by_freq: as torch.nn's; a row then counts as used once per batch. sparse: ignored; gradients always have
    only the rows that were used. load_state_dict also accepts the weight of a torch.nn.Embedding: row i becomes the row
    of key i. from_pretrained makes a module from such a weight.
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
        """Return the destination of the weight of a torch.nn.Embedding."""
        return {"weight": Destination(self.variable, self.padding_idx)}

    @torch.compiler.disable
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids, ids.shape + (dim,), on the device of ids. A missing key reads as its initial row.

        ids: keys, integers of any shape. A backward pass collects the gradients of the rows for
        kvemb.torch.Optimizer.step(), unless fused. Raises TypeError for ids; RuntimeError if this module cannot be
        trained now; what Store.lookup raises.
        """
        keys = keys_on_their_device(ids).reshape(-1)
        if self.scale_grad_by_freq and torch.is_grad_enabled():
            out = self._scaled_by_frequency(keys)
        else:
            (out,) = self.rows([RowRequest(self.variable, keys, self.padding_idx)])
        out = clipped(out, self.max_norm, self.norm_type)
        return self.as_output(out.view(*ids.shape, self.variable.dim), ids.device)

    def _scaled_by_frequency(self, keys: Any) -> torch.Tensor:
        """Return the rows of keys; the gradient of each is divided by the number of its occurrences."""
        found = distinct(keys, self.variable)
        (rows,) = self.rows([RowRequest(self.variable, found.keys, self.padding_idx, unchanged=False)])
        divide_gradient(rows, found.counts)
        return torch.nn.functional.embedding(found.inverse, rows)
