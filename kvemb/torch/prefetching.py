"""prefetching: a loader whose next batches' rows are read from disk while the current one trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import torch

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.torch.bags import keys_of
from kvemb.torch.embedding import Embedding
from kvemb.torch.embedding_bag import EmbeddingBag
from kvemb.variable import Variable

Batch = TypeVar("Batch")
# How a batch gives the ids of a variable: the name of a field, or its index, or a function.
Source = str | int | Callable[[Any], Any]
MOST_DEPTH = 16


def prefetching(
    loader: Iterable[Batch], ids: Mapping[Variable | Embedding | EmbeddingBag, Source], depth: int = 1
) -> Iterator[Batch]:
    """Yield the batches of a loader, in order; the cold rows of the `depth` next ones are being read meanwhile.

    ids: for each variable, or module of one, where a batch has its ids: batch[name], or function(batch), a tensor or an
    array of keys of any shape. No result changes: rows that change meanwhile are read again. Closing the generator
    early leaves nothing running but reads under way. Raises TypeError, ValueError, before the first batch; what the
    loader, the functions and Variable.prefetch raise.
    """
    if not isinstance(ids, Mapping):
        raise TypeError(f"expected a dict from variables to where a batch has their ids, got {brief(ids)}")
    sources = [(_variable(given), _function(source)) for given, source in ids.items()]
    return _ahead(iter(loader), sources, as_int(depth, "depth", 1, MOST_DEPTH))


def _ahead(
    batches: Iterator[Batch], sources: list[tuple[Variable, Callable[[Any], Any]]], depth: int
) -> Iterator[Batch]:
    waiting: deque[Batch] = deque(islice(batches, 1))  # the first is looked up at once
    while waiting:
        for batch in islice(batches, depth + 1 - len(waiting)):
            for variable, source in sources:
                keys = source(batch)
                variable.prefetch(keys_of(keys) if isinstance(keys, torch.Tensor) else keys)
            waiting.append(batch)
        yield waiting.popleft()


def _variable(given: Any) -> Variable:
    if isinstance(given, (Embedding, EmbeddingBag)):
        return given.variable
    if not isinstance(given, Variable):
        raise TypeError(f"expected a Variable, or a module of one, got {brief(given)}")
    return given


def _function(source: Any) -> Callable[[Any], Any]:
    if callable(source):
        return source  # type: ignore[no-any-return]
    if not isinstance(source, (str, int)):
        raise TypeError(f"expected the name of a batch's field, or a function, got {brief(source)}")
    return lambda batch: batch[source]
