"""Export a variable of a checkpoint or a store to a file format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.destinations import PIPE, atomic_output
from kvemb.tools.export_parts import export_parts
from kvemb.tools.exported_rows import BATCH_ROWS, RowOptions, bounds, table_of, widened, write, write_rows
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import SCORE, SLOTS, STEP, Table
from kvemb.tools.formats.known import Format, format_of
from kvemb.tools.limits import MAX_JOBS, MAX_PARTS
from kvemb.tools.reading import Progress, opened, readable, rows_of, selected
from kvemb.tools.where import parse_where


@dataclass(frozen=True)
class Exported:
    """What was written. removed: how many keys of removed rows were written; 0 without since.

    left_out: those of "slots" and "scores" that the variable has and the export lacks: training cannot continue
    without them.
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
    """Write a variable of a checkpoint or store at path to out, in key order. Memory does not grow with the table.

    path: a place (kvemb.bulk.Place): a checkpoint, a store, a series, whose newest checkpoint is taken, or
    SERIES/00000042; also at a URL, or of a cluster. out: a new file or folder, a URL that fsspec reaches, or an open
    binary file, such as a pipe. format: a name in formats.known.FORMATS; None: by the ending of out. where: conditions,
    all of which must hold. since: an earlier checkpoint of the same store, if path is a checkpoint too: only rows that
    changed since are written, and the keys
    of removed rows to NAME.removed.npy next to out. dtype: float16, bfloat16 or int8, the last with a column `scale`
    to multiply by. normalize: scale each row to norm 1. with_slots, with_scores: columns for the optimizer's slots,
    and for score and step of the last change. partitions: number of files, one for each key range, in a folder. jobs:
    number of processes that write them. batch_rows: rows that are read and written at a time. progress(done, total):
    bytes, while a checkpoint is pulled, and rows.

    Raises BadInput, FileExistsError, and what opening path raises; then out is not created.
    """
    conditions = parse_where([where] if isinstance(where, str) else list(where))
    if dtype not in (None, "float16", "bfloat16", "int8"):
        raise WrongUsage(f"--dtype must be float16, bfloat16 or int8, got {dtype!r}")
    target = out if not isinstance(out, (str, os.PathLike)) else os.fspath(out)
    kind = format_of(format, target if isinstance(target, str) else PIPE, written=True)
    asked = (SLOTS,) * with_slots + (SCORE, STEP) * with_scores
    options = RowOptions(kind.always or asked, dtype, normalize, conditions, batch_rows)
    if (partitions > 1 or jobs > 1) and (since is not None or not isinstance(target, str)):
        raise WrongUsage("--partitions and --jobs write a folder of files; leave them out with --since and with a pipe")
    for what, number, most in (("--partitions", partitions, MAX_PARTS), ("--jobs", jobs, MAX_JOBS)):
        if not 1 <= number <= most:
            raise WrongUsage(f"{what} must be at least 1 and at most {most:,}")
    with ExitStack() as stack:
        earlier = None if since is None else stack.enter_context(readable(since, progress))
        here = stack.enter_context(readable(path, progress, since=earlier))
        source = stack.enter_context(opened(here, variable, named=path))
        table = table_of(source, options)
        if normalize and table.value.dtype.kind in "iu" and dtype != "int8":
            raise BadInput(f"--normalize needs floats, the values are {table.value.dtype.name}; add --dtype float16")
        table = widened(table, kind)
        kind.check(table)
        lost = _left_out(source, table)
        if earlier is not None:
            return _export_changes(here, source, target, kind, table, options, earlier, progress)
        if not isinstance(target, str):
            if not kind.pipe:
                raise BadInput(f"{kind.name} cannot be written to a pipe; name a file")
            rows = write(target, kind, table, source, options, progress)
            target.flush()
            return Exported(rows, 0, PIPE, kind.name, source.name, lost)
        if partitions > 1 or jobs > 1:
            rows = export_parts(here, source, target, kind, table, options, max(partitions, jobs), jobs, progress)
            return Exported(rows, 0, target, kind.name, source.name, lost)
        with atomic_output(target, folder=kind.folder) as made:
            rows = write(made, kind, table, source, options, progress)
    return Exported(rows, 0, target, kind.name, source.name, lost)


def _left_out(source: kvemb.Variable, table: Table) -> tuple[str, ...]:
    slots = any(table.column(slot["name"]) is None for slot in table.metadata["slots"])
    scores = source.restrict_policy is not None and table.column(SCORE) is None
    return (SLOTS,) * slots + ("scores",) * scores


def _export_changes(
    path: str | os.PathLike[str],
    source: kvemb.Variable,
    target: str | IO[bytes],
    kind: Format,
    table: Table,
    options: RowOptions,
    since: str | os.PathLike[str],
    progress: Progress | None,
) -> Exported:
    """Write the rows that changed since a checkpoint, and the removed keys to a separate file."""
    if not isinstance(target, str):
        raise BadInput("--since writes two files, but a pipe takes one; name a file")
    changes = kvemb.Checkpoint(path).changes(since, variables=[source.name])
    removed: list[Any] = [np.empty(0, source.key_dtype)]
    table = Table(table.columns, None, {**table.metadata, "whole": False})
    first, last = options.where.narrowed(*bounds(source))

    def rows() -> Iterator[bulk.Rows]:
        done = 0
        for change in changes:
            removed.append(change.removed[(first <= change.removed) & (change.removed <= last)])
            part = rows_of(change)
            if options.where:
                inside = (first <= part.keys) & (part.keys <= last)
                part = selected(part, inside & options.where.mask(part))
            if len(part):
                yield part
            done += len(change.keys)
            if progress is not None:
                progress(done, 0)

    if kind.counted:
        raise BadInput(
            f"{kind.name} begins with the number of rows, which is unknown with --since; choose another format"
        )
    beside = removed_beside(target)
    with atomic_output(beside, folder=False) as gone, atomic_output(target, folder=kind.folder) as made:
        count = write_rows(made, kind, table, rows(), options)
        with open(gone, "wb") as file:
            np.save(file, np.concatenate(removed))
    return Exported(count, sum(map(len, removed)), target, kind.name, source.name, _left_out(source, table))


def removed_beside(out: str) -> str:
    """Return the path of the removed keys of an export to out."""
    path = out.rstrip("/")
    stem, dot, ending = path.rpartition(".")
    return f"{stem if dot and '/' not in ending else path}.removed.npy"
