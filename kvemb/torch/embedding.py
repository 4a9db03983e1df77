"""Embedding: torch.nn.Embedding over a variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvemb.frameworks.variables import Needs, check_padding, variable_of
from kvemb.rows.names import StringKeys
from kvemb.store import Store
from kvemb.torch.bags import ids_of, not_padding, padding_in_dtype
from kvemb.torch.eager import never_compiled
from kvemb.torch.lookups import RowRequest, distinct, divide_gradient
from kvemb.torch.options import INITIAL, REFUSED, check_norm, check_output, clipped
from kvemb.torch.table_module import TableModule
from kvemb.variable import Variable


class Embedding(TableModule):
    """Look up rows by key, as torch.nn.Embedding does by index.

    Keys are any integers of the variable's key dtype, or strings with ``key_dtype="string"``, so the module takes no
    number of rows. A key without a row reads as its initial row. The first optimizer step on a key creates its row.

    ``load_state_dict`` accepts this module's own state, and also the ``weight`` of a torch.nn.Embedding, whose row i
    becomes the row of key i.

    Args:
        variable: A Variable, or the name of one, which is opened or made with the other arguments.
        dim: The number of values in a row. A new variable needs it; otherwise it may be left out.
        padding_idx: A key, which may be negative, or a string, that is not trained. It reads as zeros, unless it has a
            row: one that ``from_pretrained`` or ``load_state_dict`` wrote, or that is there when the module first looks
            it up.
        max_norm: Scale rows with a larger norm to this norm in the result. Unlike in torch.nn.Embedding, the table does
            not change. None: no limit.
        norm_type: The p of the p-norm that ``max_norm`` limits.
        scale_grad_by_freq: Divide each row's gradient by the number of its occurrences in the batch, as
            torch.nn.Embedding does.
        sparse: Ignored. Gradients always hold only the rows that were used.
        store: The store of a variable that is given by name. None: the default store.
        fused: Take the optimizer's step during each backward pass, one step for each call of the module. Its gradients
            are not unscaled by a ``GradScaler``. If the model's gradients are accumulated or clipped, the step of
            the dense part's optimizer raises RuntimeError, as these rows have taken theirs. A fused module
            cannot be in a part of the model that activation checkpointing computes again.
        check_finite: Raise ValueError for a step whose gradients have a NaN or an infinity. Such a step changes
            nothing.
        output_dtype: The dtype of results: ``torch.float32``, ``float64``, ``float16`` or ``bfloat16``. None: float32,
            or float64 for float64 values, also under autocast. ``half()``, ``bfloat16()``, ``double()``, ``float()``
            and ``to(dtype)`` then change it, as they change that of torch.nn's modules.
        **arguments: Other arguments of ``kvemb.Store.get_variable``, such as ``optimizer`` and ``initializer``. Without
            an initializer, new rows are normally distributed, with mean 0 and standard deviation 1, as torch.nn's are.

    Raises:
        TypeError: For an argument of the wrong type, or one of torch.nn's that does not exist here.
        ValueError: For an argument out of range, a variable of integers, ``fused=True`` for a variable without an
            optimizer, or arguments beside a Variable, which exists already.
        KvembError: What ``kvemb.Store.get_variable`` raises.

    Example:
        >>> import kvemb, torch
        >>> import kvemb.torch as kt
        >>> words = kt.Embedding("words", 16, optimizer=kvemb.optimizers.Adagrad())
        >>> words(torch.tensor([[5, 17], [5, -3]])).shape
        torch.Size([2, 2, 16])
    """

    def __init__(
        self,
        variable: Variable | str | None = None,
        dim: int | None = None,
        *,
        padding_idx: int | str | None = None,
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
        padding, norm = check_padding(padding_idx, strings=True), check_norm(max_norm, norm_type)
        check_output(output_dtype)
        needs = Needs(strings=True, padding=padding, fused=fused)
        self.variable: Variable = variable_of(variable, dim, store, arguments, REFUSED, INITIAL, needs=needs)
        super().__init__([self.variable], fused, check_finite, output_dtype)
        self.destinations["weight"] = self.variable
        self.padding_idx: int | str | None = padding
        self._padding_found: bool | None = None
        self.max_norm: float | None
        self.norm_type: float
        self.max_norm, self.norm_type = norm
        self.scale_grad_by_freq: bool = bool(scale_grad_by_freq)
        self.sparse: bool = bool(sparse)

    @never_compiled
    def forward(self, ids: torch.Tensor | npt.ArrayLike | StringKeys) -> torch.Tensor:
        """Return the rows of keys, on the device of ``ids``; those of strings on the module's.

        A key without a row gets its initial row; nothing is inserted. A backward pass collects the gradients of the
        rows for ``kvemb.torch.Optimizer.step``, or takes the step itself if the module is fused. In eval() uses are not
        recorded.

        Args:
            ids: Keys, a tensor of integers of any shape. For a variable with string keys: strings of any shape and kind
                that ``kvemb.hash_strings`` takes, such as a list or a NumPy array, or what ``kvemb.string_keys``
                returns.

        Returns:
            Rows of shape ``ids.shape + (dim,)``, in the module's output dtype.

        Raises:
            TypeError: If ``ids`` is not a dense tensor of integers, or not strings.
            ValueError: If a string is missing, or longer than the variable's ``name_bytes``.
            HashCollision: If two strings have the same hash.
            RuntimeError: If the module cannot be trained now, for example because no optimizer takes its gradients.
            KvembError: What ``kvemb.Store.lookup`` raises.
        """
        keys, shape, device = ids_of(ids, self.variable, self.anchor.device)
        if self.scale_grad_by_freq and torch.is_grad_enabled():
            out = self._scaled_by_frequency(keys)
        else:
            out = self._rows_of(RowRequest(self.variable, keys, self.padding_idx))
        out = clipped(out, self.max_norm, self.norm_type)
        return self._as_output(out.view(*shape, self.variable.dim), device)

    def _scaled_by_frequency(self, keys: Any) -> torch.Tensor:
        """Return the rows of keys; the gradient of each is divided by the number of its occurrences."""
        found = distinct(keys, self.variable)
        request = RowRequest(self.variable, found.keys, self.padding_idx, unchanged=False, counts=found.counts)
        rows = self._rows_of(request)
        divide_gradient(rows, found.counts)
        return torch.nn.functional.embedding(found.inverse, rows)

    def _rows_of(self, request: RowRequest) -> torch.Tensor:
        """Return the rows of a request, those of the padding key as the store has them."""
        kept = not_padding(request.keys, request.padding)
        if kept is None or kept.all() or not self._padding_is_there():
            return self.rows([request])[0]
        is_padding = ~kept
        rows, given = self.rows([request, RowRequest(self.variable, request.keys[is_padding][:1])])
        # Detached, so that the key gets no gradient.
        return torch.where(torch.as_tensor(is_padding, device=rows.device)[:, None], given.detach(), rows)

    def _padding_is_there(self) -> bool:
        """Whether the padding key has a row. Asked once, as a lookup of its own would come between others and steps."""
        padding: Any = self.padding_idx
        if isinstance(padding, int) and padding_in_dtype(padding, np.empty(0, self.variable.key_dtype)) is None:
            return False
        if self._padding_found is None:
            self._padding_found = bool(self.variable.lookup([padding], return_exists=True, touch=False)[1].any())
        return self._padding_found

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._load_from_state_dict(*arguments, **named)
        self._padding_found = None
