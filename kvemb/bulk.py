"""Whole rows in and out, past the hot tier: what offline tools are made of.

load() sorts what it is given beside the store, in runs on disk where memory would not hold it, and hands the cold store
finished files in key order, which it takes as they are. Memory does not follow the table.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvemb.arguments import at_least
from kvemb.codec import key_at, order_key
from kvemb.manifest import entry_of
from kvemb.meter import Meter, Progress
from kvemb.rows import RowBlock
from kvemb.schema import LAST_KEY, as_keys, as_values, public_keys
from kvemb.sorter import Sorter
from kvemb.store import Store
from kvemb.tablefiles import TableFiles
from kvemb.variable import Variable, open_stored

BATCH_ROWS = 65_536
MOST_STEPS = 2**62


@dataclass(frozen=True)
class Rows:
    """Rows of one variable, whole.

    keys (n,), values (n, dim), slots: by name (n, dim), scores (n,) float64, steps (n,) int64, of the last change. For
    load(), slots, scores and steps may be None: what a row has that is made now.
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


def described(variable: Variable) -> dict[str, Any]:
    """Return all that a variable is beside its rows, as JSON can hold it: what make() takes."""
    entry = asdict(variable._entry())
    return {"name": variable.name, **entry, "slots": list(entry["slots"])}


def make(store: Store, name: str, like: Mapping[str, Any]) -> Variable:
    """Make a variable as described() tells, the count of its steps included, or open one that is so.

    Raises UnsupportedFormat where the description cannot be read; SchemaMismatch; ValueError for a policy of a user's
    own, which has to be passed to get_variable.
    """
    entry = entry_of({field: value for field, value in like.items() if field != "name"}, name)
    if entry.policy is not None and entry.policy.get("kind") == "custom":
        raise ValueError(
            f"{name!r} has a restrict policy of its own, {entry.policy['class']}; make it with get_variable first"
        )
    variable = open_stored(store, name, entry)
    variable._tiers.advance(entry.step)
    return variable


def point(variable: Variable) -> str:
    """Return the id of the checkpoint, or of the durable point, that a read-only store shows."""
    return variable._store._manifest.id


def slot_dtype(variable: Variable) -> np.dtype[Any]:
    """Return the dtype of the optimizer's slots."""
    return variable._schema.slot_dtype


def new_slots(variable: Variable, n: int) -> dict[str, npt.NDArray[Any]]:
    """Return the optimizer's slots as n rows that are made now have them, by name (n, dim)."""
    schema = variable._schema
    rows = variable._tiered.new_rows(np.zeros(n, np.int64), np.zeros((n, schema.dim), schema.value_dtype))
    return {name: rows.slot(at).copy() for at, name in enumerate(schema.slots)}


def scan(
    variable: Variable, n: int = BATCH_ROWS, *, first: int | None = None, last: int | None = None
) -> Iterator[Rows]:
    """Yield the rows with first <= key <= last, in key order, n at a time, from the instant of this call.

    None: no bound. Dirty rows are written first, as by Variable.export_batches. Raises Closed, Poisoned, Corruption.
    """
    schema, size = variable._schema, at_least(n, 1, "n")
    limits = np.iinfo(schema.key_dtype)
    least, most = int(limits.min), int(limits.max)
    low = least if first is None else max(operator.index(first), least)
    high = most if last is None else min(operator.index(last), most)
    if low > high:
        return iter(())
    blocks = variable._tiers.scan(size, order_key(low, schema), order_key(high, schema))
    return (_rows_of(block) for block in blocks)


def read(variable: Variable, keys: npt.ArrayLike) -> Rows:
    """Return the rows of distinct keys (n,) that exist, whole, in the order of keys. Records no use.

    Dirty rows are written first. Raises TypeError, ValueError; Closed, Poisoned, Corruption.
    """
    schema = variable._schema
    wanted = as_keys(keys, schema.key_dtype)
    tiers = variable._tiers
    with nullcontext(tiers.cold) if variable._store.health.read_only else tiers.taking_in() as cold:
        return _rows_of(cold.read(wanted)[0])


def ranges(variable: Variable, n: int) -> list[tuple[int, int]]:
    """Cut the keys there are into at most n ranges (first, last) of about as many rows each, without reading rows.

    Together they hold every key there may be. Raises Closed.
    """
    schema = variable._schema
    cuts = variable._tiers.cold.cuts(at_least(n, 1, "n"))
    firsts, lasts = [0, *cuts], [*(cut - 1 for cut in cuts), LAST_KEY]
    return [(key_at(first, schema), key_at(last, schema)) for first, last in zip(firsts, lasts, strict=True)]


def restrict(variable: Variable, num_reserved: int, *, progress: Progress | None = None) -> int:
    """Do what Variable.restrict does, and tell how far it has come; returns how many rows left.

    progress(done, total): called with rows, those that are looked at and then those that leave. Raises ValueError where
    the variable has no policy, and what Variable.restrict raises.
    """
    if variable.restrict_policy is None:
        raise ValueError(f"variable {variable.name!r} has no restrict policy, by whose scores rows could leave")
    return variable._tiered.restrict(at_least(num_reserved, 0, "num_reserved"), None, progress)


def compact(store: Store, *, progress: Progress | None = None) -> None:
    """Merge all files of every variable, so that what was replaced and removed takes no room; then flush.

    What checkpoints hold stays theirs. progress(done, total): called with rows. Raises ColdStoreError, Poisoned,
    Closed, ReadOnly.
    """
    store.flush()
    variables = list(store.variables.values())
    meter = Meter(sum(variable.size() for variable in variables), progress)
    for variable in variables:
        rows, told = variable.size(), 0

        def tell(done: int, total: int, rows: int = rows) -> None:
            nonlocal told
            meter(rows * done // total - told)
            told = rows * done // total

        variable._tiers.cold.compact(tell)
    store.flush()


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
    store = variable._store
    store.health.check_writable()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="load-", dir=store._points.live))
        files = stack.enter_context(closing(TableFiles(variable, Path(folder))))
        sorter = Sorter(variable._schema, Path(folder))
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
        done = _take_in(variable, files, sorter, on_conflict)
    store.flush()
    return done


def _take_in(variable: Variable, files: TableFiles, sorter: Sorter, on_conflict: str) -> Loaded:
    """Let the cold store have all of it at once, or nothing."""
    tiers, schema = variable._tiers, variable._schema
    added = replaced = kept = 0
    with tiers.taking_in() as cold:
        anew = tiers.size == 0
        if files.rows and not anew:
            raise ValueError(f"{variable.name!r} was empty, and was written to during the load; load again")
        if files.rows and tiers.settled() != files.settled:
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
        tiers.take_in(files.give, added, files.step)
    return Loaded(added, replaced, kept)


def _block_of(batch: Rows, variable: Variable) -> RowBlock:
    """Return a batch as rows of the variable's schema. Raises TypeError, ValueError."""
    schema = variable._schema
    keys = as_keys(batch.keys, schema.key_dtype)
    if keys.ndim != 1:
        raise ValueError(f"keys must have the shape (n,), got {keys.shape}")
    shape = (len(keys), schema.dim)
    block = variable._tiered.new_rows(keys, as_values(batch.values, schema.value_dtype, shape))
    if batch.slots is not None:
        if set(batch.slots) != set(schema.slots):
            raise ValueError(f"slots must be {list(schema.slots)}, got {sorted(batch.slots)}")
        for number, name in enumerate(schema.slots):
            block.slot(number)[:] = as_values(batch.slots[name], schema.slot_dtype, shape, f"slot {name!r}")
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


def _rows_of(block: RowBlock) -> Rows:
    schema = block.schema
    slots = {name: block.slot(at).copy() for at, name in enumerate(schema.slots)}
    return Rows(public_keys(block.keys, schema.key_dtype), block.embeddings(), slots, block.scores, block.steps)
