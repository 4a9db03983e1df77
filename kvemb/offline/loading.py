"""Bulk loading of whole rows: sorted outside the store, compared with existing rows, and ingested as table files.

Rows that do not fit in memory are sorted in runs on disk; the cold store ingests files in key order without rewriting
them. Memory does not grow with the table. Other calls of the variable wait only during the last step, the ingestion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvemb.checks.ranges import MAX_GIVEN_STEPS
from kvemb.durability.scratch import scratch
from kvemb.handle import inside
from kvemb.offline.merging import EqualKeys, Stays
from kvemb.offline.sorter import Sorter
from kvemb.offline.table_files import TableFiles
from kvemb.rows.block import RowBlock
from kvemb.rows.host_arrays import as_keys, as_values
from kvemb.rows.names import check_names, keys_of, named_keys, with_names
from kvemb.variable import Variable


@dataclass(frozen=True)
class Rows:
    """Hold whole rows of one variable.

    For ``load``, slots, scores and steps may be None: each row then gets those of a new row.

    Attributes:
        keys: Keys (n,) in the key dtype.
        values: Embeddings (n, dim) in the value dtype.
        slots: The optimizer's slots, a dict from name to (n, width).
        scores: Scores (n,), float64.
        steps: Steps of the last change (n,), int64, from 0 to 2**61.
    """

    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    slots: dict[str, npt.NDArray[Any]] | None = None
    scores: npt.NDArray[np.float64] | None = None
    steps: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.keys)


_STAYS: dict[str, Stays] = {"replace": "last", "keep": "first", "error": None}


@dataclass(frozen=True)
class Loaded:
    """Hold the result of ``load``.

    Attributes:
        added: Rows that were added.
        replaced: Existing rows that were replaced.
        kept: Existing rows that were kept.
        duplicates: Rows that were given, but left out because another given row has the same key.
    """

    added: int = 0
    replaced: int = 0
    kept: int = 0
    duplicates: int = 0


def load(
    variable: Variable, batches: Iterable[Rows], *, on_conflict: Literal["replace", "keep", "error"] = "replace"
) -> Loaded:
    """Load whole rows into a variable as sorted files, and make them durable.

    This is fastest if keys ascend and the variable is empty. Then nothing else may write to it during the load. Other
    calls wait during the last step, and the hot tier is empty afterwards. If a batch is invalid, or the iterable
    raises, nothing changes.

    Args:
        variable: The variable to load into.
        batches: Rows in any order.
        on_conflict: What to do if a key has a row already, in the variable or in an earlier batch. ``"replace"``:
            replace it, with slots, score and step. ``"keep"``: keep it. ``"error"``: raise ValueError, and change
            nothing.

    Returns:
        How many rows were added, replaced, kept, and left out because their key was given twice.

    Raises:
        TypeError, ValueError: A batch or ``on_conflict`` is not valid; ValueError also for a key that has a row already
            with ``"error"``, and if another call wrote to the variable while ascending keys were loaded into it.
        ColdStoreError: The disk could not be written.

    Example:
        >>> batch = kvemb.bulk.Rows(keys=np.array([3, 4]), values=np.zeros((2, 2), np.float32))
        >>> kvemb.bulk.load(users, [batch])
        Loaded(added=1, replaced=1, kept=0, duplicates=0)
    """
    with BulkLoader(variable, on_conflict) as loading:
        for batch in batches:
            loading.add(_block_of(batch, variable))
        done = loading.finish()
    variable.resource_handle[0].flush()
    return done


class BulkLoader:
    """Blocks of rows on their way into a variable, of its schema. A context manager; not thread-safe.

    Call add() for each block, then finish(); without finish() the variable does not change. Raises what load() raises.
    """

    def __init__(self, variable: Variable, on_conflict: Literal["replace", "keep", "error"] = "replace") -> None:
        if on_conflict not in ("replace", "keep", "error"):
            raise ValueError(f"on_conflict must be 'replace', 'keep' or 'error', got {on_conflict!r}")
        store = variable.resource_handle[0]
        store.state.check_writable()
        self._variable, self._on_conflict = variable, on_conflict
        with ExitStack() as stack:
            live = inside(store).points.live
            folder = stack.enter_context(scratch("load-", live))
            self._files = stack.enter_context(closing(TableFiles(variable, folder)))
            self._sorter = Sorter(inside(variable).schema, folder, store.limits, _STAYS[on_conflict])
            # Rows in key order for an empty variable go straight to files: there is nothing to compare them with.
            self._ascending = variable.size() == 0
            self._undo = stack.pop_all()

    def __enter__(self) -> BulkLoader:
        return self

    def __exit__(self, *raised: object) -> None:
        self._undo.close()

    def add(self, block: RowBlock) -> None:
        """Add rows. Of equal keys the last row stays, or with on_conflict "keep" the first."""
        if self._ascending and not self._files.follows(block):
            self._ascending = False
            for earlier in self._files.drain():
                self._sorter.add(earlier)
        if self._ascending:
            self._files.append(block)
        else:
            with self._equal_keys_told():
                self._sorter.add(block)

    @contextmanager
    def _equal_keys_told(self) -> Iterator[None]:
        try:
            yield
        except EqualKeys as error:
            key = keys_of(error.row)[0]
            raise ValueError(
                f"key {key} is given twice for {self._variable.name!r}; set on_conflict to replace, with which the "
                "last row stays, or to keep, with which the first does"
            ) from None

    def finish(self) -> Loaded:
        """Put all rows into the variable's cold store at once, or none. They are durable once the store is flushed."""
        storage, schema, files = inside(self._variable).storage, inside(self._variable).schema, self._files
        name, on_conflict = self._variable.name, self._on_conflict
        added = replaced = kept = 0
        with storage.bypassing() as cold:
            empty = storage.size == 0
            if files.rows and not empty:
                raise ValueError(f"{name!r} was empty when the load began, but was written to meanwhile; load again")
            if files.rows and files.sealed_epochs != inside(self._variable.resource_handle[0]).changes.sealed_epochs:
                files.record_again()  # a checkpoint without these rows took the keys recorded so far
            added = files.rows
            distinct = 0
            for block in self._blocks():
                distinct += len(block)
                exists = np.zeros(len(block), np.bool_)
                if not empty:
                    rows, exists = cold.read(block.keys)
                    if schema.name_bytes:
                        check_names(block.keys[exists], block.names()[exists], rows.names())
                existing = int(exists.sum())
                if existing and on_conflict == "error":
                    key = keys_of(block.select(exists))[0]
                    raise ValueError(f"key {key} is in {name!r} already; set on_conflict to replace or to keep")
                added += len(block) - existing
                if on_conflict == "keep":
                    kept += existing
                    block = block.select(~exists)
                else:
                    replaced += existing
                files.append(block)
            files.finish()
            storage.ingest_recorded(files.ingest, added, files.step)
        return Loaded(added, replaced, kept, self._sorter.taken - distinct)

    def _blocks(self) -> Iterator[RowBlock]:
        with self._equal_keys_told():
            yield from self._sorter.blocks()


def _block_of(batch: Rows, variable: Variable) -> RowBlock:
    """Return a batch as rows of the variable's schema. Raises TypeError, ValueError."""
    schema = inside(variable).schema
    named = named_keys(batch.keys, schema.name_bytes) if schema.name_bytes else None
    keys = as_keys(batch.keys, schema.key_dtype) if named is None else named.keys.reshape(named.shape)
    if keys.ndim != 1:
        raise ValueError(f"keys must have the shape (n,), got {keys.shape}")
    values = as_values(batch.values, schema.value_dtype, (len(keys), schema.dim))
    values = values if named is None else with_names(values, named.names)
    block = inside(variable).operations.new_rows(keys, values)
    if batch.slots is not None:
        wanted = [slot.name for slot in schema.slots]
        if set(batch.slots) != set(wanted):
            raise ValueError(f"slots must be {wanted}, got {sorted(batch.slots)}")
        for number, slot in enumerate(schema.slots):
            given, expected = batch.slots[slot.name], (len(keys), slot.width)
            what = f"slot {slot.name!r}"
            block.slot(number)[:] = as_values(given, schema.slot_dtype, expected, what, "keys.shape + (width,)")
    if batch.scores is not None:
        block.scores[:] = _column(batch.scores, np.float64, len(keys), "scores")
        if np.isnan(block.scores).any():
            raise ValueError(f"the score of key {keys[np.isnan(block.scores)][0]} is not a number")
    if batch.steps is not None:
        steps = _column(batch.steps, np.int64, len(keys), "steps")
        if wrong := [step for step in (steps.min(initial=0), steps.max(initial=0)) if not 0 <= step <= MAX_GIVEN_STEPS]:
            raise ValueError(f"steps must be from 0 to 2**61, got {wrong[0]}")
        block.steps[:] = steps
    return block


def _column(given: Any, dtype: Any, length: int, what: str) -> npt.NDArray[Any]:
    column = np.asarray(given)
    if column.shape != (length,):
        raise ValueError(f"{what} must have the shape ({length},), got {column.shape}")
    if not np.can_cast(column.dtype, dtype, "same_kind") or column.dtype == np.uint64:
        raise TypeError(f"{what} must be {np.dtype(dtype).name}, got {column.dtype.name}")
    return column.astype(dtype)
