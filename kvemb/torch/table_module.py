"""What Embedding and EmbeddingBag, modules over one variable, share: its width, and rows from a trained weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from kvemb.torch.module import RowsModule
from kvemb.torch.weights import check_weight, write_weight
from kvemb.variable import Variable


class TableModule(RowsModule):
    """A module over one variable. See RowsModule."""

    variable: Variable

    @property
    def embedding_dim(self) -> int:
        """Values in a row."""
        return self.variable.dim

    @classmethod
    def from_pretrained(
        cls, embeddings: torch.Tensor, variable: Variable | str, *, freeze: bool = True, **arguments: Any
    ) -> Self:
        """Return a module whose rows are those of a trained weight: row i is copied to key i, but for padding_idx.

        embeddings: floats (n, dim), on any device; rounded to the variable's dtype. variable: the name of a new
        variable, or a Variable, which must have no rows. freeze: the rows are not trained before requires_grad_(True).
        arguments: all others of the class, such as store, optimizer, value_dtype, mode and padding_idx.

        Raises TypeError for what is not a dense tensor of floats; ValueError for another shape, and for a variable
        that has rows, which may be trained ones: the class opens it as it is; what the class and Variable.upsert raise.
        """
        dim = check_weight(embeddings, "embeddings", variable.dim if isinstance(variable, Variable) else None)
        make: Callable[..., Self] = cls  # the arguments are those of the class
        module = make(variable, dim, **arguments)
        if rows := module.variable.size():
            raise ValueError(
                f"variable {module.variable.name!r} has {rows:,} rows, which from_pretrained would replace; open it as "
                f"it is with {cls.__name__}({module.variable.name!r}), or write over it with load_state_dict"
            )
        write_weight(embeddings, module.destinations()["weight"])
        return module.requires_grad_(not freeze)
