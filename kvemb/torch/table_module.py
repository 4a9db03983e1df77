"""The base of Embedding and EmbeddingBag, modules over one variable: its width, and rows from a trained weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy.typing as npt
import torch

from kvemb.frameworks.variables import name_bytes_of
from kvemb.options import format_count
from kvemb.rows.names import StringKeys
from kvemb.torch.module import RowsModule, processes
from kvemb.torch.weights import check_keys, check_weight, write_weight
from kvemb.variable import Variable


class TableModule(RowsModule):
    """The base of Embedding and EmbeddingBag: a module over one variable."""

    variable: Variable

    @property
    def embedding_dim(self) -> int:
        """The number of values in a row."""
        return self.variable.dim

    @classmethod
    def from_pretrained(
        cls,
        embeddings: torch.Tensor,
        variable: Variable | str,
        *,
        keys: torch.Tensor | npt.ArrayLike | StringKeys | None = None,
        freeze: bool = True,
        **arguments: Any,
    ) -> Self:
        """Return a module with the rows of a trained weight, as torch.nn.Embedding.from_pretrained does.

        Row i is copied to key i, or ``keys[i]``, also that of ``padding_idx``. If several processes train over a
        cluster (DDP), rank 0 alone calls this; then the others open the variable with the class itself.

        Args:
            embeddings: The weight, floats of shape (n, dim), on any device. It is rounded to the variable's dtype.
            variable: The name of a new variable, or a Variable without rows.
            keys: The keys of the rows, distinct integers (n,), such as those of ``kvemb.hash_strings``; strings for a
                variable with string keys. None: 0 to n - 1.
            freeze: Whether the rows stay as they are until ``requires_grad_(True)``.
            **arguments: Other arguments of the class, such as ``store``, ``optimizer``, ``value_dtype``, ``mode`` and
                ``padding_idx``.

        Returns:
            The module.

        Raises:
            TypeError: Unless ``embeddings`` is a dense tensor of floats, and keys are integers, or strings.
            ValueError: For another shape, for a key given twice, and for a variable that has rows, which may have been
                trained. To open such a variable, use the class itself.
            KvembError: What the class and ``kvemb.Variable.upsert`` raise.

        Example:
            >>> import torch
            >>> import kvemb.torch as kt
            >>> words = kt.Embedding.from_pretrained(torch.eye(3), "given")
            >>> words(torch.tensor([2]))
            tensor([[0., 0., 1.]])
        """
        dim = check_weight(embeddings, "embeddings", variable.dim if isinstance(variable, Variable) else None)
        name_bytes = name_bytes_of(variable, arguments)
        if keys is None and name_bytes:
            raise TypeError("keys are missing: the rows of a variable with string keys need a string each, keys=[...]")
        given = None if keys is None else check_keys(keys, len(embeddings), name_bytes)
        make: Callable[..., Self] = cls  # the arguments are those of the class
        module = make(variable, dim, **arguments)
        if rows := module.variable.size():
            name, what = module.variable.name, cls.__name__
            message = (
                f"variable {name!r} has {format_count(rows, 'row')}, which from_pretrained would replace; open it as "
                f"it is with {what}({name!r}), or write over it with load_state_dict"
            )
            if processes() > 1:
                opening = f"{what}({name!r}){'.requires_grad_(False)' if freeze else ''}"
                message += f"; of several processes rank 0 alone calls from_pretrained, and then the others {opening}"
            raise ValueError(message)
        write_weight(embeddings, module.variable, given)
        module.requires_grad_(not freeze)
        return module
