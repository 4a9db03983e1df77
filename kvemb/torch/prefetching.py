"""prefetching: the rows of the next batches of a loader are read from disk while the current one trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import torch

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.torch.bags import keys_of
from kvemb.torch.collection import EmbeddingBagCollection
from kvemb.torch.embedding import Embedding
from kvemb.torch.embedding_bag import EmbeddingBag
from kvemb.variable import Variable

Batch = TypeVar("Batch")
# How a batch gives the ids of a variable: the name of a field, or its index, or a function.
Source = str | int | Callable[[Any], Any]
# What reads ahead the rows that a batch needs.
Ask = Callable[[Any], None]
MAX_DEPTH = 16


def prefetching(
    loader: Iterable[Batch],
    ids: Mapping[Variable | Embedding | EmbeddingBag | EmbeddingBagCollection, Source],
    depth: int = 1,
) -> Iterator[Batch]:
    """Yield the batches of a loader, in order; the cold rows of the `depth` next ones are being read meanwhile.

    ids: for each variable, or module, where a batch has its ids: batch[name], or function(batch), a tensor or an array
    of keys of any shape; of an EmbeddingBagCollection what its forward takes. A read begins when the lookup of the
    current batch has ended, and runs while the model works; at most two batches are read ahead at a time. No result
    changes: rows that change meanwhile are read again. Closing the generator early leaves nothing running but reads
    under way. Raises TypeError, ValueError, before the first batch; what the loader, the functions and
    Variable.prefetch raise.
    """
    if not isinstance(ids, Mapping):
        raise TypeError(f"expected a dict from variables to where a batch has their ids, got {brief(ids)}")
    asks = [_ask(given, _function(source)) for given, source in ids.items()]
    return _ahead(iter(loader), asks, as_int(depth, "depth", 1, MAX_DEPTH))


def _ahead(batches: Iterator[Batch], asks: list[Ask], depth: int) -> Iterator[Batch]:
    waiting: deque[Batch] = deque(islice(batches, 1))  # the first is looked up at once
    while waiting:
        for batch in islice(batches, depth + 1 - len(waiting)):
            for ask in asks:
                ask(batch)
            waiting.append(batch)
        yield waiting.popleft()


def _ask(given: Any, source: Callable[[Any], Any]) -> Ask:
    """Return what reads ahead for a variable or a module."""

    def of_variable(batch: Any) -> None:
        keys = source(batch)
        variable.prefetch(keys_of(keys) if isinstance(keys, torch.Tensor) else keys, after_lookup=True)

    def of_collection(batch: Any) -> None:
        for table, keys in given.keys_by_variable(source(batch)).items():
            table.prefetch(keys, after_lookup=True)

    if isinstance(given, EmbeddingBagCollection):
        return of_collection
    variable = given.variable if isinstance(given, (Embedding, EmbeddingBag)) else given
    if not isinstance(variable, Variable):
        raise TypeError(f"expected a Variable, or a module of one, got {brief(given)}")
    return of_variable


def _function(source: Any) -> Callable[[Any], Any]:
    if callable(source):
        return source  # type: ignore[no-any-return]
    if not isinstance(source, (str, int)):
        raise TypeError(f"expected the name of a batch's field, or a function, got {brief(source)}")
    return lambda batch: batch[source]
