"""prefetching: reads the rows of a loader's next batches from disk while the model trains on the current one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.frameworks.reading_ahead import MAX_DEPTH, Batch, Lookup, Source, prefetches_of, read_ahead
from kvemb.torch.bags import keys_of
from kvemb.torch.collection import EmbeddingBagCollection
from kvemb.torch.embedding import Embedding
from kvemb.torch.embedding_bag import EmbeddingBag
from kvemb.variable import Variable


def prefetching(
    loader: Iterable[Batch],
    ids: Mapping[Variable | Embedding | EmbeddingBag | EmbeddingBagCollection, Source],
    depth: int = 1,
) -> Iterator[Batch]:
    """Yield the batches of a loader, in order, while the cold rows of the next ``depth`` batches are read from disk.

    A read begins when the lookup of the current batch has ended, and runs while the model computes. At most two batches
    are read ahead at a time. Results do not change: rows that change meanwhile are read again. If you close the
    generator early, only reads that have begun go on.

    Args:
        loader: An iterable of batches, such as a torch DataLoader.
        ids: A dict from each variable, or module of one, to where a batch has its ids: the name or index of a field
            (``batch[name]``), or a function of the batch. The ids are a tensor or an array of keys of any shape, or
            strings for a variable with string keys. For an EmbeddingBagCollection they are the argument of its
            ``forward``.
        depth: How many batches ahead of the current one are taken from the loader, from 1 to 16.

    Yields:
        The batches, as the loader gives them.

    Raises:
        TypeError: Before the first batch, for an argument of the wrong type. Later, for a batch that has no fields.
        ValueError: Before the first batch, for a ``depth`` out of range.
        KeyError: For a batch without the named field, after the batches before it. An IndexError likewise.
        KvembError: What ``kvemb.Variable.prefetch`` raises for a batch, after the batches before it. An error of the
            loader or of a function is raised then, too.

    Example:
        >>> import kvemb, torch
        >>> import kvemb.torch as kt
        >>> words = kt.Embedding("words", 4, optimizer=kvemb.optimizers.SGD(0.5))
        >>> loader = [{"words": torch.tensor([1, 2])}, {"words": torch.tensor([2, 3])}]
        >>> for batch in kt.prefetching(loader, {words: "words"}):
        ...     print(words(batch["words"]).shape)
        torch.Size([2, 4])
        torch.Size([2, 4])
    """
    return read_ahead(iter(loader), prefetches_of(ids, _lookup_of), as_int(depth, "depth", 1, MAX_DEPTH))


def _lookup_of(given: Any) -> Lookup:
    if isinstance(given, EmbeddingBagCollection):
        return given.variables, given.keys_by_variable
    variable = given.variable if isinstance(given, (Embedding, EmbeddingBag)) else given
    if not isinstance(variable, Variable):
        raise TypeError(f"expected a Variable, or a module of one, got {brief(given)}")
    return [variable], lambda ids: {variable: keys_of(ids) if isinstance(ids, torch.Tensor) else ids}
