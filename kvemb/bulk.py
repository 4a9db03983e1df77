"""Whole rows in and out, past the hot tier: what offline tools are made of.

load() sorts what it is given beside the store, in runs on disk where memory would not hold it, and hands the cold store
finished files in key order, which it takes as they are. Memory follows RUN_BYTES, not the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvemb import layout
from kvemb.arguments import at_least
from kvemb.codec import order_keys, unordered_keys
from kvemb.contracts import SortedFile
from kvemb.manifest import entry_of
from kvemb.rows import RowBlock
from kvemb.schema import LAST_KEY, Schema, as_keys, as_values, public_keys
from kvemb.store import Store
from kvemb.variable import Variable, open_stored

BATCH_ROWS = 65_536
# Rows that are sorted in memory at once; and of a file that the cold store takes.
RUN_BYTES, FILE_BYTES = 64 << 20, 64 << 20


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
    variable._tiered.advance(entry.step)
    return variable


def slot_dtype(variable: Variable) -> np.dtype[Any]:
    """Return the dtype of the optimizer's slots."""
    return variable._schema.slot_dtype


def scan(
    variable: Variable, n: int = BATCH_ROWS, *, first: int | None = None, last: int | None = None
) -> Iterator[Rows]:
    """Yield the rows with first <= key <= last, in key order, n at a time, from the instant of this call.

    None: no bound. Dirty rows are written first, as by Variable.export_batches. Raises Closed, Poisoned, Corruption.
    """
    schema, size = variable._schema, at_least(n, 1, "n")
    bounds = [0 if first is None else _ordered(first, schema), LAST_KEY if last is None else _ordered(last, schema)]
    return (_rows_of(block) for block in variable._tiered.scan(size, *bounds))


def ranges(variable: Variable, n: int) -> list[tuple[int, int]]:
    """Cut the keys there are into at most n ranges (first, last) of about as many rows each, without reading rows.

    Together they hold every key there may be. Raises Closed.
    """
    schema = variable._schema
    cuts = variable._tiered.cold.cuts(at_least(n, 1, "n"))
    firsts, lasts = [0, *cuts], [*(cut - 1 for cut in cuts), LAST_KEY]
    return [(_key(first, schema), _key(last, schema)) for first, last in zip(firsts, lasts, strict=True)]


def compact(store: Store) -> None:
    """Merge all files of every variable, so that what was replaced and removed takes no room; then flush.

    What checkpoints hold stays theirs. Raises ColdStoreError, Poisoned, Closed, ReadOnly.
    """
    store.flush()
    for variable in store.variables.values():
        if variable.persistent:
            variable._tiered.cold.compact()
    store.flush()


def load(
    variable: Variable, batches: Iterable[Rows], *, on_conflict: Literal["replace", "keep", "error"] = "replace"
) -> Loaded:
    """Put whole rows into a variable at the speed of writing them in key order, and make them durable.

    batches: in any order; of equal keys the last wins. on_conflict: what becomes of a row that is there already:
    "replace" it with slots, score and step; "keep" it; "error" changes nothing and raises ValueError. Fastest where
    keys ascend. The hot tier is empty afterwards. Other calls wait for the last part of it. A batch that is refused,
    or fails to come, changes nothing.

    Raises TypeError, ValueError for a batch that does not fit; Poisoned, Closed, ReadOnly, ColdStoreError.
    """
    if on_conflict not in ("replace", "keep", "error"):
        raise ValueError(f"on_conflict must be 'replace', 'keep' or 'error', got {on_conflict!r}")
    store = variable._store
    store.health.check_writable()
    with tempfile.TemporaryDirectory(prefix="load-", dir=store._points.live) as folder:
        sorter = _Sorter(variable._schema, Path(folder))
        for batch in batches:
            sorter.add(_block_of(batch, variable))
        done = _take_in(variable, sorter, on_conflict)
    store.flush()
    return done


def _take_in(variable: Variable, sorter: _Sorter, on_conflict: str) -> Loaded:
    tiered, schema = variable._tiered, variable._schema
    added = replaced = kept = step = 0
    with tiered.taking_in() as cold:
        files = _Files(variable, sorter.folder)
        anew = tiered.size == 0
        for block in sorter.blocks():
            exists = np.zeros(len(block), np.bool_) if anew else cold.read(block.keys)[1]
            there = int(exists.sum())
            if there and on_conflict == "error":
                key = public_keys(block.keys[exists], schema.key_dtype)[0]
                raise ValueError(f"key {key} is in {variable.name!r} already; use on_conflict='replace' or 'keep'")
            added += len(block) - there
            if on_conflict == "keep":
                kept += there
                block = block.select(~exists)
            else:
                replaced += there
            if len(block):
                step = max(step, int(block.steps.max()))
                tiered.record(block.keys)
                files.append(block)
        files.finish()
        tiered.take_in(files.give, added, step)
    return Loaded(added, replaced, kept)


class _Sorter:
    """Rows in any order, given back in key order, of equal keys the last: runs of RUN_BYTES on disk, then merged."""

    def __init__(self, schema: Schema, folder: Path) -> None:
        self.folder, self._schema = folder, schema
        columns = [("key", "<u8"), ("score", "<f8"), ("step", "<i8"), ("words", "<u8", (schema.row_words,))]
        self._layout = np.dtype(columns)
        self._waiting: list[npt.NDArray[Any]] = []
        self._runs: list[Path] = []

    def add(self, block: RowBlock) -> None:
        """Take rows."""
        rows = np.empty(len(block), self._layout)
        rows["key"], rows["words"] = order_keys(block.keys, self._schema), block.words
        rows["score"], rows["step"] = block.scores, block.steps
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) * self._layout.itemsize >= RUN_BYTES:
            self._write_run()

    def _write_run(self) -> None:
        path = self.folder / f"{len(self._runs)}.run"
        with layout.refusing(f"write {path}"):
            _last_of_each(self._waiting).tofile(path)
        self._runs.append(path)
        self._waiting = []

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all rows, keys ascending. REQUIRES: called once, at the end."""
        for rows in self._merged() if self._runs else [_last_of_each(self._waiting)] if self._waiting else []:
            for at in range(0, len(rows), BATCH_ROWS):
                yield self._block(rows[at : at + BATCH_ROWS])

    def _merged(self) -> Iterator[npt.NDArray[Any]]:
        """Merge the runs: in each round all that is not above the least last key of what was read of each."""
        if self._waiting:
            self._write_run()
        size = self._layout.itemsize
        left = [path.stat().st_size // size for path in self._runs]
        read = [0] * len(left)
        window = max(1024, RUN_BYTES // size // len(left))
        heads = [np.empty(0, self._layout)] * len(left)
        while True:
            for run, path in enumerate(self._runs):
                if len(heads[run]) < window // 2 and left[run]:
                    count = min(window, left[run])
                    more = np.fromfile(path, self._layout, count, offset=read[run] * size)
                    heads[run] = np.concatenate([heads[run], more])
                    read[run] += count
                    left[run] -= count
            if not any(map(len, heads)):
                return
            ends = [head["key"][-1] for head, more in zip(heads, left, strict=True) if more]
            stops = [len(head) if not ends else int(np.searchsorted(head["key"], min(ends), "right")) for head in heads]
            parts = [head[:stop] for head, stop in zip(heads, stops, strict=True)]
            heads = [head[stop:] for head, stop in zip(heads, stops, strict=True)]
            yield _last_of_each(parts)

    def _block(self, rows: npt.NDArray[Any]) -> RowBlock:
        block = RowBlock(self._schema, len(rows))
        block.keys[:] = unordered_keys(np.ascontiguousarray(rows["key"]), self._schema)
        block.words[:], block.scores[:], block.steps[:] = rows["words"], rows["score"], rows["step"]
        return block


def _last_of_each(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return rows in key order, of equal keys the last one."""
    rows = np.concatenate(parts)
    if (rows["key"][1:] <= rows["key"][:-1]).any():
        rows = rows[np.argsort(rows["key"], kind="stable")]
        last = np.ones(len(rows), np.bool_)
        last[:-1] = rows["key"][1:] != rows["key"][:-1]
        rows = rows[last]
    return rows


class _Files:
    """Files of rows in key order, one beyond the other, for the cold store of a variable."""

    def __init__(self, variable: Variable, folder: Path) -> None:
        self._variable, self._folder = variable, folder
        self._most_rows = max(1, FILE_BYTES // RowBlock.bytes_per_row(variable._schema))
        self._done: list[Path] = []
        self._open: SortedFile | None = None
        self._blocks: list[RowBlock] = []

    def append(self, block: RowBlock) -> None:
        """Write rows beyond the last ones."""
        if not self._variable.persistent:
            self._blocks.append(block)  # its cold store is memory anyway
            return
        if self._open is None:
            path = self._folder / f"{len(self._done)}.sst"
            database = self._variable._store._database
            self._open = database.sorted_file(path, self._variable._schema, self._variable._creator)
        self._open.append(block)
        if self._open.rows >= self._most_rows:
            self.finish()

    def finish(self) -> None:
        """Complete what was written. Raises ColdStoreError."""
        if self._open is not None:
            self._open.finish()
            self._done.append(self._open.path)
            self._open = None

    def give(self) -> None:
        """Give all of it to the cold store. Raises ColdStoreError."""
        for path in self._done:
            self._variable._store._in_order(self._variable._store._database.ingest, self._variable.name, path)
            path.unlink()
        for block in self._blocks:
            self._variable._tiered.cold.write(block)


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
        block.steps[:] = _column(batch.steps, np.int64, len(keys), "steps")
    return block


def _column(given: Any, dtype: Any, length: int, what: str) -> npt.NDArray[Any]:
    column = np.asarray(given)
    if column.shape != (length,):
        raise ValueError(f"{what} must have the shape ({length},), got {column.shape}")
    if not np.can_cast(column.dtype, dtype, "same_kind"):
        raise TypeError(f"{what} must be {np.dtype(dtype).name}, got {column.dtype.name}")
    return column.astype(dtype)


def _rows_of(block: RowBlock) -> Rows:
    schema = block.schema
    slots = {name: block.slot(at).copy() for at, name in enumerate(schema.slots)}
    return Rows(public_keys(block.keys, schema.key_dtype), block.embeddings(), slots, block.scores, block.steps)


def _ordered(key: int, schema: Schema) -> int:
    """Return the place of a key in their order, of one beyond the dtype's range too."""
    return min(max(int(key) + (0 if schema.key_dtype == np.uint64 else 2**63), 0), LAST_KEY)


def _key(ordered: int, schema: Schema) -> int:
    limits = np.iinfo(schema.key_dtype)
    key = ordered - (0 if schema.key_dtype == np.uint64 else 2**63)
    return min(max(key, int(limits.min)), int(limits.max))
