"""Loading whole rows: sorted beside the store, compared with what is there, and given to it as finished files.

What is loaded is sorted in runs on disk where memory would not hold it, and the cold store takes files in key order as
they are. Memory does not follow the table. Other calls of the variable wait for the last part alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvemb.checks.ranges import MOST_STEPS
from kvemb.handle import inside
from kvemb.offline.sorter import Sorter
from kvemb.offline.table_files import TableFiles
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import as_keys, as_values, public_keys
from kvemb.variable import Variable


@dataclass(frozen=True)
class Rows:
    """Rows of one variable, whole.

    keys (n,), values (n, dim), slots: by name (n, width), scores (n,) float64, steps (n,) int64, of the last change.
    For load(), slots, scores and steps may be None: what a row has that is made now.
    """

    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    slots: dict[str, npt.NDArray[Any]] | None = None
    scores: npt.NDArray[np.float64] | None = None
    steps: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Loaded:
    """What load() did: rows that were not there, rows that were and were replaced, rows that were and stayed."""

    added: int = 0
    replaced: int = 0
    kept: int = 0


def load(
    variable: Variable, batches: Iterable[Rows], *, on_conflict: Literal["replace", "keep", "error"] = "replace"
) -> Loaded:
    """Put whole rows into a variable at the speed of writing them in key order, and make them durable.

    batches: in any order; of equal keys the last wins. on_conflict: what becomes of a row that is there already:
    "replace" it with slots, score and step; "keep" it; "error" changes nothing and raises ValueError. Fastest where
    keys ascend and the variable is empty; then nobody else may write to it meanwhile. The hot tier is empty
    afterwards. Other calls wait for the last part of it. A batch that is refused, or fails to come, changes nothing.

    Raises TypeError, ValueError for a batch that does not fit; Poisoned, Closed, ReadOnly, ColdStoreError.
    """
    if on_conflict not in ("replace", "keep", "error"):
        raise ValueError(f"on_conflict must be 'replace', 'keep' or 'error', got {on_conflict!r}")
    store = variable.resource_handle[0]
    store.state.check_writable()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="load-", dir=inside(store).points.live))
        files = stack.enter_context(closing(TableFiles(variable, Path(folder))))
        sorter = Sorter(inside(variable).schema, Path(folder))
        # Into an empty variable rows that ascend go to files as they come: there is nothing to compare them with.
        ascending = variable.size() == 0
        for batch in batches:
            block = _block_of(batch, variable)
            if ascending and not files.follows(block):
                ascending = False
                for earlier in files.taken_back():
                    sorter.add(earlier)
            if ascending:
                files.append(block)
            else:
                sorter.add(block)
        done = _compare_and_give(variable, files, sorter, on_conflict)
    store.flush()
    return done


def _compare_and_give(variable: Variable, files: TableFiles, sorter: Sorter, on_conflict: str) -> Loaded:
    """Let the cold store have all of it at once, or nothing."""
    storage, schema = inside(variable).storage, inside(variable).schema
    added = replaced = kept = 0
    with storage.bypassing() as cold:
        anew = storage.size == 0
        if files.rows and not anew:
            raise ValueError(f"{variable.name!r} was empty, and was written to during the load; load again")
        if files.rows and storage.sealed_epochs() != files.sealed_epochs:
            files.record_again()  # what was recorded went to a checkpoint that these rows are not in
        added = files.rows
        for block in sorter.blocks():
            exists = np.zeros(len(block), np.bool_) if anew else cold.read(block.keys)[1]
            there = int(exists.sum())
            if there and on_conflict == "error":
                key = public_keys(block.keys[exists], schema.key_dtype)[0]
                raise ValueError(f"key {key} is in {variable.name!r} already; ask for on_conflict 'replace' or 'keep'")
            added += len(block) - there
            if on_conflict == "keep":
                kept += there
                block = block.select(~exists)
            else:
                replaced += there
            files.append(block)
        files.finish()
        storage.take_in(files.give, added, files.step)
    return Loaded(added, replaced, kept)


def _block_of(batch: Rows, variable: Variable) -> RowBlock:
    """Return a batch as rows of the variable's schema. Raises TypeError, ValueError."""
    schema = inside(variable).schema
    keys = as_keys(batch.keys, schema.key_dtype)
    if keys.ndim != 1:
        raise ValueError(f"keys must have the shape (n,), got {keys.shape}")
    shape = (len(keys), schema.dim)
    block = inside(variable).operations.new_rows(keys, as_values(batch.values, schema.value_dtype, shape))
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
        if wrong := [step for step in (steps.min(initial=0), steps.max(initial=0)) if not 0 <= step < MOST_STEPS]:
            raise ValueError(f"steps must be from 0 to 2**62 - 1, got {wrong[0]}")
        block.steps[:] = steps
    return block


def _column(given: Any, dtype: Any, length: int, what: str) -> npt.NDArray[Any]:
    column = np.asarray(given)
    if column.shape != (length,):
        raise ValueError(f"{what} must have the shape ({length},), got {column.shape}")
    if not np.can_cast(column.dtype, dtype, "same_kind") or column.dtype == np.uint64:
        raise TypeError(f"{what} must be {np.dtype(dtype).name}, got {column.dtype.name}")
    return column.astype(dtype)
