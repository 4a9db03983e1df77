"""Where the ids of a batch are, and batches in order, with those ahead of the current one given to prefetch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from kvemb.checks.brief import brief
from kvemb.variable import Variable

Batch = TypeVar("Batch")
# Where the ids of a variable are in a batch: the name or the index of a field, or a function of the batch.
Source = str | int | Callable[[Any], Any]
# A function that returns the keys of each variable in the ids of a batch; the variables, and such a function.
KeysIn = Callable[[Any], Mapping[Variable, Any]]
Lookup = tuple[list[Variable], KeysIn]
# A function that reads ahead the rows of a batch.
Prefetch = Callable[[Any], None]
MAX_DEPTH = 16


def read_ahead(batches: Iterator[Batch], prefetches: list[Prefetch], depth: int) -> Iterator[Batch]:
    """Yield the batches in order; each prefetch gets the next `depth` batches before the current one is yielded."""
    waiting: deque[Batch] = deque(islice(batches, 1))  # the first is looked up at once
    failure: Exception | None = None
    while waiting:
        if failure is None:
            try:
                for batch in islice(batches, depth + 1 - len(waiting)):
                    for prefetch in prefetches:
                        prefetch(batch)
                    waiting.append(batch)
            except Exception as error:
                failure = error  # raised after the batches before it, as without reading ahead
        yield waiting.popleft()
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # its traceback would keep this frame, the loader and its workers alive


def prefetches_of(ids: Any, lookup_of: Callable[[Any], Lookup]) -> list[Prefetch]:
    """Return functions that read ahead. ids: a dict from variables, modules or layers to the sources of their ids.

    lookup_of: returns what one of these looks up. Raises TypeError.
    """
    if not isinstance(ids, Mapping):
        raise TypeError(f"ids must be a dict from variables to the field of a batch with their ids, got {brief(ids)}")
    return [_prefetch_of(*lookup_of(given), source) for given, source in ids.items()]


def _prefetch_of(variables: list[Variable], keys_in: KeysIn, source: Any) -> Prefetch:
    ids_in = _ids_in(source, ", ".join(repr(variable.name) for variable in variables))

    def prefetch(batch: Any) -> None:
        for variable, keys in keys_in(ids_in(batch)).items():
            variable.prefetch(keys, after_lookup=True)

    return prefetch


def _ids_in(source: Any, name: str) -> Callable[[Any], Any]:
    """Return the function that gives the ids in a batch. name: of the variables, for messages. Raises TypeError."""
    if callable(source):
        return source  # type: ignore[no-any-return]
    if not isinstance(source, (str, int)):
        raise TypeError(f"expected the name of a batch's field, or a function, got {brief(source)}")

    def field(batch: Any) -> Any:
        try:
            return batch[source]
        except (KeyError, IndexError, TypeError) as error:
            there = f"has {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else f"is {brief(batch)}"
            message = f"the batch has no field {source!r}, where the ids of {name} should be; it {there}"
            kind = next(kind for kind in (KeyError, IndexError, TypeError) if isinstance(error, kind))
            raise kind(message) from error

    return field
