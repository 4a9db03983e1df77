"""Exporting a variable of a checkpoint, or of a store that is read, to what others read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.destinations import PIPE, atomic_directory
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import KEY, SCALE, SCORE, SLOTS, STEP, VALUE, Batch, Column, Place, Table
from kvemb.tools.formats.known import Format, format_of
from kvemb.tools.numbers import dtype_of, rounded, unit, widen
from kvemb.tools.reading import Progress, opened, rows_of, selected, telling
from kvemb.tools.where import Where, parse_where

BATCH_ROWS = 65_536
# In files, as the format of what they say of their table.
ABOUT_FORMAT = 2


@dataclass(frozen=True)
class Wish:
    """What of each row is exported, and how.

    beside: of SLOTS, SCORE and STEP, those that go with key and value. dtype: of the values, None as they are.
    batch_rows: rows that are read and written at a time.
    """

    beside: tuple[str, ...] = ()
    dtype: str | None = None
    normalize: bool = False
    where: Where = Where()  # noqa: RUF009 -- frozen
    batch_rows: int = BATCH_ROWS


@dataclass(frozen=True)
class Exported:
    """What was written. removed: how many keys of removed rows, written beside it with since; else 0.

    left_out: of "slots" and "scores", what the variable has and the export has not: training cannot go on from it.
    """

    rows: int
    removed: int
    out: str
    format: str
    variable: str
    left_out: tuple[str, ...] = ()


def export(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | IO[bytes],
    *,
    variable: str | None = None,
    format: str | None = None,
    where: str | list[str] = (),  # type: ignore[assignment]
    since: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    normalize: bool = False,
    with_slots: bool = False,
    with_scores: bool = False,
    partitions: int = 1,
    jobs: int = 1,
    batch_rows: int = BATCH_ROWS,
    progress: Progress | None = None,
) -> Exported:
    """Write a variable of a checkpoint or store at path to out, in key order, in memory that does not follow its size.

    out: a new file or folder, a URL that fsspec reaches, or a binary file that is open, such as a pipe. format: one of
    formats.FORMATS; None: as out ends. where: conditions, all of which must hold. since: a checkpoint that path, a
    checkpoint, follows: only rows that changed since, and beside out the keys that were removed, in NAME.removed.npy.
    dtype: float16, bfloat16 or int8, the last with a column `scale` by which to multiply. normalize: each row to the
    length 1. with_slots, with_scores: columns for the optimizer's slots, and for score and step of the last change.
    partitions: files, of ranges of keys, in a folder. jobs: processes that write them. batch_rows: rows that are read
    and written at a time. progress(done, total): rows.

    Raises BadInput, FileExistsError, and what opening path does; then there is no out.
    """
    conditions = parse_where([where] if isinstance(where, str) else list(where))
    if dtype not in (None, "float16", "bfloat16", "int8"):
        raise WrongUsage(f"--dtype must be float16, bfloat16 or int8, got {dtype!r}")
    place = out if not isinstance(out, (str, os.PathLike)) else os.fspath(out)
    kind = format_of(format, place if isinstance(place, str) else PIPE, written=True)
    asked = (SLOTS,) * with_slots + (SCORE, STEP) * with_scores
    wish = Wish(kind.always or asked, dtype, normalize, conditions, batch_rows)
    if (partitions > 1 or jobs > 1) and (since is not None or not isinstance(place, str)):
        raise WrongUsage("--partitions and --jobs make a folder of files; leave them out with --since and with a pipe")
    if partitions < 1 or jobs < 1:
        raise WrongUsage(f"--partitions and --jobs must be at least 1, got {partitions} and {jobs}")
    with opened(path, variable) as source:
        table = table_of(source, wish)
        if normalize and table.value.dtype.kind in "iu" and dtype != "int8":
            raise BadInput(f"--normalize needs floats, the values are {table.value.dtype.name}; add --dtype float16")
        table = widened(table, kind)
        kind.check(table)
        lost = _left_out(source, table)
        if since is not None:
            return _export_changes(path, source, place, kind, table, wish, since, progress)
        if not isinstance(place, str):
            if not kind.pipe:
                raise BadInput(f"{kind.name} cannot be written to a pipe; name a file")
            rows = write(place, kind, table, source, wish, progress)
            place.flush()
            return Exported(rows, 0, PIPE, kind.name, source.name, lost)
        if partitions > 1 or jobs > 1:
            from kvemb.tools.export_parts import export_parts

            rows = export_parts(path, source, place, kind, table, wish, max(partitions, jobs), jobs, progress)
            return Exported(rows, 0, place, kind.name, source.name, lost)
        with atomic_directory(place, folder=kind.folder) as made:
            rows = write(made, kind, table, source, wish, progress)
    return Exported(rows, 0, place, kind.name, source.name, lost)


def _left_out(source: kvemb.Variable, table: Table) -> tuple[str, ...]:
    slots = any(table.column(slot["name"]) is None for slot in table.about["slots"])
    scores = source.restrict_policy is not None and table.column(SCORE) is None
    return (SLOTS,) * slots + ("scores",) * scores


def table_of(source: kvemb.Variable, wish: Wish) -> Table:
    """Return the table that a variable gives, with what is known of it."""
    about: dict[str, Any] = {"format": ABOUT_FORMAT, **bulk.described(source)}
    given = source.value_dtype if wish.dtype is None else dtype_of(wish.dtype)
    columns = [Column(KEY, source.key_dtype), Column(VALUE, given, source.dim)]
    if wish.dtype == "int8":
        columns.append(Column(SCALE, np.dtype(np.float32)))
    if SLOTS in wish.beside:
        columns += [Column(slot["name"], bulk.slot_dtype(source), slot["width"]) for slot in about["slots"]]
    if SCORE in wish.beside:
        columns.append(Column(SCORE, np.dtype(np.float64)))
    if STEP in wish.beside:
        columns.append(Column(STEP, np.dtype(np.int64)))
    if wish.dtype is None and not wish.normalize and not wish.where:
        about["whole"] = {SLOTS, SCORE, STEP} <= set(wish.beside)
    return Table(columns, None if wish.where else source.size(), about)


def widened(table: Table, kind: Format) -> Table:
    """Return a table as a format holds it: bfloat16 as float32 where it has no such, which brings back every bit."""
    narrow = [column.name for column in table.columns if column.dtype.name == "bfloat16"]
    if not narrow or (kind.dtypes is not None and "bfloat16" in kind.dtypes):
        return table
    columns = [
        replace(column, dtype=np.dtype(np.float32)) if column.name in narrow else column for column in table.columns
    ]
    return Table(columns, table.rows, {**table.about, "bfloat16": narrow})


def scanned(
    source: kvemb.Variable, wish: Wish, progress: Progress | None, ends: tuple[int, int] | None = None
) -> Iterator[bulk.Rows]:
    """Yield the rows that are wished for. ends: the range of keys, None for all."""
    first, last = wish.where.narrowed(*(ends or _bounds(source)))
    if first > last:
        return
    for rows in telling(bulk.scan(source, wish.batch_rows, first=first, last=last), progress, source.size()):
        part = selected(rows, wish.where.mask(rows)) if wish.where.clauses else rows
        if len(part):
            yield part


def _bounds(source: kvemb.Variable) -> tuple[int, int]:
    """The least and the greatest key there may be."""
    limits = np.iinfo(source.key_dtype)
    return int(limits.min), int(limits.max)


def batch_of(rows: bulk.Rows, table: Table, wish: Wish) -> Batch:
    """Return rows as columns of a table."""
    values = rows.values
    if wish.normalize:
        values = unit(values).astype(rows.values.dtype if wish.dtype is None else np.float32)
    batch: Batch = {KEY: rows.keys, **(rows.slots or {}), SCORE: rows.scores, STEP: rows.steps}  # type: ignore[dict-item]
    if wish.dtype == "int8":
        wide = rounded(values, np.dtype(np.float32), rows.keys, "leave --dtype out, or add --normalize")
        if not (finite := np.isfinite(wide).all(axis=1)).all():
            raise BadInput(f"the row of key {rows.keys[~finite][0]} has a NaN or an infinity, which int8 cannot hold")
        scale = np.max(np.abs(wide), axis=1, initial=0.0) / np.float32(127)
        ratio = np.divide(wide, scale[:, None], out=np.zeros_like(wide), where=scale[:, None] > 0)
        values, batch[SCALE] = np.clip(np.rint(ratio), -127, 127).astype(np.int8), scale.astype(np.float32)
    elif wish.dtype is not None:
        values = rounded(values, dtype_of(wish.dtype), rows.keys, "choose another --dtype, or leave it out")
    batch[VALUE] = values
    bits = table.about.get("bfloat16", [])
    return {
        column.name: widen(batch[column.name]) if column.name in bits else batch[column.name]
        for column in table.columns
    }


def write(
    place: Place,
    kind: Format,
    table: Table,
    source: kvemb.Variable,
    wish: Wish,
    progress: Progress | None = None,
    ends: tuple[int, int] | None = None,
) -> int:
    """Write the rows that are wished for in a format; returns how many. ends: the range of keys, None for all."""
    if kind.counted and table.rows is None:
        table = Table(table.columns, sum(map(len, scanned(source, wish, None, ends))), table.about)
    return _write_rows(place, kind, table, scanned(source, wish, progress, ends), wish)


def _write_rows(place: Place, kind: Format, table: Table, rows: Iterator[bulk.Rows], wish: Wish) -> int:
    count = 0

    def batches() -> Iterator[Batch]:
        nonlocal count
        for part in rows:
            count += len(part)
            yield batch_of(part, table, wish)

    kind.write(place, table, batches())
    return count


def _export_changes(
    path: str | os.PathLike[str],
    source: kvemb.Variable,
    place: str | IO[bytes],
    kind: Format,
    table: Table,
    wish: Wish,
    since: str | os.PathLike[str],
    progress: Progress | None,
) -> Exported:
    """Write what changed since a checkpoint, and the keys that were removed beside it."""
    if not isinstance(place, str):
        raise BadInput("--since writes two files, and a pipe takes one; name a file")
    changes = kvemb.Checkpoint(path).changes(since, variables=[source.name])
    removed: list[Any] = [np.empty(0, source.key_dtype)]
    table = Table(table.columns, None, {**table.about, "whole": False})
    first, last = wish.where.narrowed(*_bounds(source))

    def rows() -> Iterator[bulk.Rows]:
        done = 0
        for change in changes:
            removed.append(change.removed[(first <= change.removed) & (change.removed <= last)])
            part = rows_of(change)
            if wish.where:
                inside = (first <= part.keys) & (part.keys <= last)
                part = selected(part, inside & wish.where.mask(part))
            if len(part):
                yield part
            done += len(change.keys)
            if progress is not None:
                progress(done, 0)

    if kind.counted:
        raise BadInput(f"{kind.name} begins with the number of rows, which --since cannot know; choose another format")
    beside = removed_beside(place)
    with atomic_directory(beside, folder=False) as gone, atomic_directory(place, folder=kind.folder) as made:
        count = _write_rows(made, kind, table, rows(), wish)
        with open(gone, "wb") as file:
            np.save(file, np.concatenate(removed))
    return Exported(count, sum(map(len, removed)), place, kind.name, source.name, _left_out(source, table))


def removed_beside(out: str) -> str:
    """Where the removed keys of an export go."""
    place = out.rstrip("/")
    stem, dot, ending = place.rpartition(".")
    return f"{stem if dot and '/' not in ending else place}.removed.npy"
