"""EmbeddingBag: torch.nn.EmbeddingBag over a variable."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from kvemb.frameworks.variables import Needs, check_padding, variable_of
from kvemb.rows.names import StringKeys
from kvemb.shared_docs import described_as
from kvemb.store import Store
from kvemb.torch.bags import bags_of, ids_of
from kvemb.torch.eager import never_compiled
from kvemb.torch.embedding import Embedding
from kvemb.torch.options import INITIAL, REFUSED, check_mode, check_norm, check_output
from kvemb.torch.pooling import BagLookup, Pooling
from kvemb.torch.table_module import TableModule
from kvemb.variable import Variable


@described_as(Embedding)
class EmbeddingBag(TableModule):
    """Pool bags of rows by key, as torch.nn.EmbeddingBag does by index.

    ``load_state_dict`` accepts this module's own state, and also the ``weight`` of a torch.nn.EmbeddingBag, whose row i
    becomes the row of key i.

    Args:
        max_norm: Scale rows with a larger norm to this norm before they are pooled. Unlike in torch.nn.EmbeddingBag,
            the table does not change. None: no limit.
        scale_grad_by_freq: Divide each row's gradient by the number of its occurrences in the batch, as
            torch.nn.EmbeddingBag does. Not for mode "max".
        mode: How the rows of a bag are pooled: "mean", "sum" or "max".
        include_last_offset: Whether ``offsets`` ends with the number of ids.
        padding_idx: A key that is left out of the bags, and not counted in a mean. It is not looked up or trained.

    Raises:
        TypeError: For an argument of the wrong type, or one of torch.nn's that does not exist here.
        ValueError: For an argument out of range, ``scale_grad_by_freq`` with mode "max", a variable of integers,
            ``fused=True`` for a variable without an optimizer, or arguments beside a Variable, which exists already.
        KvembError: What ``kvemb.Store.get_variable`` raises.

    Example:
        >>> import kvemb, torch
        >>> import kvemb.torch as kt
        >>> adagrad = kvemb.optimizers.Adagrad(0.05)
        >>> tags = kt.EmbeddingBag("tags", 16, mode="sum", optimizer=adagrad)
        >>> tags(torch.tensor([5, 17, 42]), torch.tensor([0, 2])).shape  # [5, 17], [42]
        torch.Size([2, 16])
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
        padding_idx: int | str | None = None,
        store: Store | None = None,
        fused: bool = False,
        check_finite: bool = False,
        output_dtype: torch.dtype | None = None,
        **arguments: Any,
    ) -> None:
        padding, norm = check_padding(padding_idx, strings=True), check_norm(max_norm, norm_type)
        self.pooling: Pooling = Pooling(check_mode(mode), padding, *norm, bool(scale_grad_by_freq))
        if self.pooling.scale_grad_by_freq and mode == "max":
            raise ValueError("scale_grad_by_freq is not supported with mode='max'")
        check_output(output_dtype)
        needs = Needs(strings=True, padding=padding, fused=fused)
        self.variable: Variable = variable_of(variable, dim, store, arguments, REFUSED, INITIAL, needs=needs)
        super().__init__([self.variable], fused, check_finite, output_dtype)
        self.destinations["weight"] = self.variable
        self.include_last_offset: bool = bool(include_last_offset)
        self.sparse: bool = bool(sparse)

    @never_compiled
    def forward(
        self,
        ids: torch.Tensor | npt.ArrayLike | StringKeys,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the pooled bags, on the device of ``ids``; those of strings on the module's. An empty bag gives zeros.

        A backward pass collects the gradients of the rows for ``kvemb.torch.Optimizer.step``, or takes the step itself
        if the module is fused. In eval() uses are not recorded. All arguments are checked before anything is looked up.

        Args:
            ids: Keys. Either integers of shape (n,), all bags one after the other, or (count, m), one bag a row. For a
                variable with string keys: strings of such a shape, as for Embedding.
            offsets: Where each bag begins in ``ids``, integers of shape (count,), from 0 and ascending. With
                ``include_last_offset`` the shape is (count + 1,), and the last one is n. None for ``ids`` of shape
                (count, m).
            per_sample_weights: Floats of the shape of ``ids``, by which the rows are multiplied. Only for mode "sum".
                They may require a gradient. None: 1.

        Returns:
            The bags, of shape (count, dim), in the module's output dtype.

        Raises:
            TypeError: If an argument is not a dense tensor of the right kind of numbers.
            ValueError: For a wrong shape, offsets out of order, or weights with another mode; for strings as Embedding.
            RuntimeError: If the module cannot be trained now, for example because no optimizer takes its gradients.
            KvembError: What ``kvemb.Store.lookup`` raises.
        """
        bags = bags_of(
            ids_of(ids, self.variable, self.anchor.device),
            offsets,
            per_sample_weights,
            include_last_offset=self.include_last_offset,
            mode=self.pooling.mode,
        )
        lookup = BagLookup(self.variable, bags, self.pooling)
        (rows,) = self.rows([lookup.request])
        return self._as_output(lookup.pool(rows), bags.device)
