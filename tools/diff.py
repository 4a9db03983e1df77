"""The differences between two checkpoints: rows added, removed and changed, and how far rows moved.

If B follows A, only the rows that the store recorded as changed are read; otherwise both tables are read in full.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.errors import CheckpointNotFound
from kvemb.tools.destinations import atomic_output
from kvemb.tools.failures import BadInput
from kvemb.tools.keys import in_order
from kvemb.tools.numbers import lengths, row_bytes, unit
from kvemb.tools.reading import Progress, chosen, no_rows, opened, readable, rows_of, selected

BATCH_ROWS = 65_536
# Upper bounds of the bins of both distributions. No number is negative, so the first bin counts exact zeros.
_UPTO = [0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, np.inf]


@dataclass
class Distribution:
    """counts[i]: how many numbers are above upto[i-1] and at most upto[i]. Both lists have the same length."""

    upto: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass
class Moved:
    """A row that is in both and whose values differ. l2: norm of the difference; cosine: between the two rows."""

    key: int | str
    l2: float
    cosine: float


@dataclass
class Difference:
    """The differences in one variable. recorded: True if only recorded changes were read, False if both tables were.

    table: "added" if only the second checkpoint has the variable, "removed" if only the first has it; then all its rows
    are counted as added, or removed, and none were read. changed: rows in both whose values, slots, score or step
    differ; moved: those whose values differ. l2, cosine: how far they moved, as the norm of the difference relative to
    that of the row before, and as 1 - cosine. most: the rows that moved most; rows with NaN before or after, whose
    distance is NaN, come first.
    """

    variable: str
    recorded: bool
    table: Literal["common", "added", "removed"] = "common"
    added: int = 0
    removed: int = 0
    changed: int = 0
    moved: int = 0
    l2: Distribution = field(default_factory=Distribution)
    cosine: Distribution = field(default_factory=Distribution)
    most: list[Moved] = field(default_factory=list)


# The rows of one key range that differ, before and after, in key order; either side may be empty.
_Part = tuple[bulk.Rows, bulk.Rows]


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    variable: str | None = None,
    top: int = 10,
    out: str | os.PathLike[str] | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: Progress | None = None,
) -> list[Difference]:
    """Compare all variables of two checkpoints or stores, or one of them; returns a Difference for each.

    a, b: places (kvemb.bulk.Place): a checkpoint, a store, a series, whose newest checkpoint is taken, or
    SERIES/00000042; also at a URL, or of a cluster. top: how many of the rows that moved most to list. out: a new
    Parquet file for the rows that differ, with columns key, change ("added", "removed", "changed"), before, after and
    l2; it takes one variable. batch_rows: rows that are compared at a time. progress(done, total): bytes, while a
    checkpoint is pulled, and rows.

    Raises BadInput if a variable's schema differs; with out, if either lacks the variable; FileExistsError.
    """
    with readable(a, progress) as place_a, readable(b, progress, since=place_a) as place_b:
        first, second = kvemb.Checkpoint.at(place_a), kvemb.Checkpoint.at(place_b)
        one, other = set(first.variables), set(second.variables)
        known = sorted(one | other if out is None else one & other)
        names = known if variable is None and out is None else [chosen(f"{a} and {b}", known, variable, has="have")]
        for name in one.intersection(other, names):
            _check_schema(name, a, first, b, second)
        found = []
        for name in names:
            if name not in one:
                found.append(Difference(name, False, "added", added=second.variables[name].rows))
            elif name not in other:
                found.append(Difference(name, False, "removed", removed=first.variables[name].rows))
            else:
                with nullcontext() if out is None else _writer(out, second.variables[name]) as write:
                    found.append(_diff(first, second, name, top, write, batch_rows, progress))
        return found


def _check_schema(name: str, a: object, first: kvemb.Checkpoint, b: object, second: kvemb.Checkpoint) -> None:
    """Raise BadInput unless the variable has the same schema in both. a, b: their names in messages."""
    one, other = first.variables[name], second.variables[name]
    for what in ("key_dtype", "value_dtype", "dim"):
        if getattr(one, what) != getattr(other, what):
            raise BadInput(
                f"variable {name!r} has {what} {getattr(one, what)} in {a} and {getattr(other, what)} in {b}; "
                "convert one of them with kvemb migrate"
            )


def _diff(
    first: kvemb.Checkpoint,
    second: kvemb.Checkpoint,
    name: str,
    top: int,
    write: _Write | None,
    batch_rows: int,
    progress: Progress | None,
) -> Difference:
    with opened(first.path, name) as before, opened(second.path, name) as after:
        try:
            changes = second.changes(first.path, variables=[name], batch_rows=batch_rows)
            parts, recorded = _recorded(changes, before, progress), True
        except CheckpointNotFound:
            parts, recorded = _side_by_side(before, after, batch_rows, progress), False
        found = Difference(name, recorded)
        histograms = np.zeros((2, len(_UPTO)), np.int64)
        for part in parts:
            _add_up(part, found, histograms, top, write)
            found.most.sort(key=lambda each: (0, 0.0) if np.isnan(each.l2) else (1, -each.l2))
            del found.most[top:]
        found.l2, found.cosine = (Distribution([*_UPTO], histogram.tolist()) for histogram in histograms)
        return found


def _recorded(changes: Iterator[kvemb.Change], before: kvemb.Variable, progress: Progress | None) -> Iterator[_Part]:
    done = 0
    for change in changes:
        keys = np.sort(np.concatenate([change.keys, change.removed]))
        yield bulk.read(before, keys), rows_of(change)
        done += len(keys)
        if progress is not None:
            progress(done, 0)


def _side_by_side(
    before: kvemb.Variable, after: kvemb.Variable, batch_rows: int, progress: Progress | None
) -> Iterator[_Part]:
    """Read both in key order, and yield the differences of each key range."""
    total, done = before.size() + after.size(), 0
    streams = [bulk.scan(before, batch_rows), bulk.scan(after, batch_rows)]
    heads = [next(stream, None) for stream in streams]
    while any(head is not None for head in heads):
        limit = min(in_order(head.keys[-1:])[0] for head in heads if head is not None)
        parts = [no_rows(before), no_rows(after)]
        for at, head in enumerate(heads):
            if head is None:
                continue
            stop = int(np.searchsorted(in_order(head.keys), limit, "right"))
            parts[at] = selected(head, slice(0, stop))
            done += stop
            heads[at] = selected(head, slice(stop, None)) if stop < len(head) else next(streams[at], None)
        yield _differing(*parts)
        if progress is not None:
            progress(done, total)


def _differing(before: bulk.Rows, after: bulk.Rows) -> _Part:
    """Return the rows that differ."""
    _, mine, theirs = np.intersect1d(before.keys, after.keys, assume_unique=True, return_indices=True)
    same = _same(before.values[mine], after.values[theirs])
    same &= _same(before.scores[mine], after.scores[theirs]) & (before.steps[mine] == after.steps[theirs])  # type: ignore[index]
    if _widths(before) == _widths(after):
        for name, slot in (before.slots or {}).items():
            same &= _same(slot[mine], (after.slots or {})[name][theirs])
    keep = np.ones(len(before), np.bool_), np.ones(len(after), np.bool_)
    keep[0][mine[same]] = keep[1][theirs[same]] = False
    return selected(before, keep[0]), selected(after, keep[1])


def _widths(rows: bulk.Rows) -> dict[str, int]:
    return {name: slot.shape[1] for name, slot in (rows.slots or {}).items()}


def _same(one: Any, other: Any) -> Any:
    """Return which rows are equal bit for bit, (n,) bool."""
    return (row_bytes(one) == row_bytes(other)).all(axis=1)


def _add_up(part: _Part, found: Difference, histograms: Any, top: int, write: _Write | None) -> None:
    """Add a part to found and histograms; append up to `top` rows to found.most."""
    before, after = part
    _, mine, theirs = np.intersect1d(before.keys, after.keys, assume_unique=True, return_indices=True)
    found.added += len(after) - len(theirs)
    found.removed += len(before) - len(mine)
    found.changed += len(mine)
    old, new = before.values[mine].astype(np.float64), after.values[theirs].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        distance, norms = lengths(new - old), (lengths(old), lengths(new))
        cosines = np.where((norms[0] > 0) & (norms[1] > 0), np.sum(unit(old) * unit(new), axis=1), np.nan)
        relative = distance / norms[0]
    moved = ~_same(before.values[mine], after.values[theirs])
    found.moved += int(moved.sum())
    for histogram, numbers in zip(histograms, (relative, 1 - cosines), strict=True):
        known = np.where(np.isnan(numbers[moved]), np.inf, np.maximum(numbers[moved], 0.0))
        histogram += np.bincount(np.searchsorted(_UPTO, known), minlength=len(_UPTO))
    keys = before.keys[mine].tolist()
    positions = np.flatnonzero(moved)
    # lexsort's last key is the primary one: NaN first, then by distance, the largest first; ties by key.
    order = np.lexsort((-distance[positions], ~np.isnan(distance[positions])))
    found.most += [Moved(keys[at], float(distance[at]), float(cosines[at])) for at in positions[order][:top]]
    if write is not None:
        write(before, after, mine, distance)


# Writes rows in key order: before, after, the positions in before of the rows that are in both, and their l2.
_Write = Callable[[bulk.Rows, bulk.Rows, Any, Any], None]


@contextmanager
def _writer(out: str | os.PathLike[str], entry: Any) -> Iterator[_Write]:
    """Yield a function that writes the rows that differ to a Parquet file, which appears if the block succeeds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = pa.from_numpy_dtype(np.dtype(_plain(entry.value_dtype)))
    lists, key = pa.list_(number, entry.dim), pa.string()
    if entry.key_dtype != "string":
        key = pa.from_numpy_dtype(np.dtype(entry.key_dtype))
    schema = pa.schema(
        [("key", key), ("change", pa.string()), ("before", lists), ("after", lists), ("l2", pa.float64())]
    )

    def write(before: bulk.Rows, after: bulk.Rows, mine: Any, moved_by: Any) -> None:
        keys = np.union1d(before.keys, after.keys)
        if len(keys) == 0:
            return
        at = {"before": np.searchsorted(keys, before.keys), "after": np.searchsorted(keys, after.keys)}
        change = np.full(len(keys), "changed")
        columns = {}
        for name, rows in (("before", before), ("after", after)):
            values = np.zeros((len(keys), entry.dim), _plain(rows.values.dtype.name))
            values[at[name]] = rows.values.astype(values.dtype)
            absent = np.ones(len(keys), np.bool_)
            absent[at[name]] = False
            change[absent] = "added" if name == "before" else "removed"
            flat = pa.array(values.reshape(-1), number)
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, entry.dim, mask=pa.array(absent))
        distance = np.full(len(keys), np.nan)
        distance[at["before"][mine]] = moved_by
        l2 = pa.array(distance, mask=np.isnan(distance))
        table = [pa.array(keys, key), pa.array(change.tolist(), pa.string()), columns["before"], columns["after"], l2]
        file.write_table(pa.table(table, schema=schema))

    with atomic_output(out, folder=False) as path, pq.ParquetWriter(path, schema) as file:
        yield write


def _plain(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype
