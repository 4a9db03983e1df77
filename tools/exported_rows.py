"""The rows of an export: its columns, batches of rows as they are written, and the writing of a key range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import KEY, SCALE, SCORE, SLOTS, STEP, VALUE, Batch, Column, PathOrFile, Table
from kvemb.tools.formats.known import Format
from kvemb.tools.numbers import dtype_of, rounded, unit, widen
from kvemb.tools.reading import Progress, selected, with_progress
from kvemb.tools.where import Where

BATCH_ROWS = 65_536
# On disk: the version of the metadata that files contain.
METADATA_FORMAT = 2


@dataclass(frozen=True)
class RowOptions:
    """Which rows and columns are exported, and how.

    beside: those of SLOTS, SCORE and STEP that are exported. dtype: of the values; None keeps theirs. batch_rows: rows
    that are read and written at a time.
    """

    beside: tuple[str, ...] = ()
    dtype: str | None = None
    normalize: bool = False
    where: Where = Where()  # noqa: RUF009 -- frozen
    batch_rows: int = BATCH_ROWS


def table_of(source: kvemb.Variable, options: RowOptions) -> Table:
    """Return the columns and the metadata of a variable's export."""
    metadata: dict[str, Any] = {"format": METADATA_FORMAT, **bulk.described(source)}
    given = source.value_dtype if options.dtype is None else dtype_of(options.dtype)
    columns = [Column(KEY, source.key_dtype), Column(VALUE, given, source.dim)]
    if options.dtype == "int8":
        columns.append(Column(SCALE, np.dtype(np.float32)))
    if SLOTS in options.beside:
        columns += [Column(slot["name"], bulk.slot_dtype(source), slot["width"]) for slot in metadata["slots"]]
    if SCORE in options.beside:
        columns.append(Column(SCORE, np.dtype(np.float64)))
    if STEP in options.beside:
        columns.append(Column(STEP, np.dtype(np.int64)))
    if options.dtype is None and not options.normalize and not options.where:
        metadata["whole"] = {SLOTS, SCORE, STEP} <= set(options.beside)
    return Table(columns, None if options.where else source.size(), metadata)


def widened(table: Table, kind: Format) -> Table:
    """Return a table with bfloat16 columns as float32, which keeps every bit, if the format has no bfloat16."""
    narrow = [column.name for column in table.columns if column.dtype.name == "bfloat16"]
    if not narrow or (kind.dtypes is not None and "bfloat16" in kind.dtypes):
        return table
    columns = [
        replace(column, dtype=np.dtype(np.float32)) if column.name in narrow else column for column in table.columns
    ]
    return Table(columns, table.rows, {**table.metadata, "bfloat16": narrow})


def scanned(
    source: kvemb.Variable, options: RowOptions, progress: Progress | None, key_range: tuple[int, int] | None = None
) -> Iterator[bulk.Rows]:
    """Yield the rows to export. key_range: first and last key, None for all."""
    first, last = options.where.narrowed(*(key_range or bounds(source)))
    if first > last:
        return
    for rows in with_progress(bulk.scan(source, options.batch_rows, first=first, last=last), progress, source.size()):
        part = selected(rows, options.where.mask(rows)) if options.where.clauses else rows
        if len(part):
            yield part


def bounds(source: kvemb.Variable) -> tuple[int, int]:
    """Return the smallest and the largest key of the key dtype."""
    limits = np.iinfo(source.key_dtype)
    return int(limits.min), int(limits.max)


def batch_of(rows: bulk.Rows, table: Table, options: RowOptions) -> Batch:
    """Return rows as a batch of a table's columns."""
    values = rows.values
    if options.normalize:
        values = unit(values).astype(rows.values.dtype if options.dtype is None else np.float32)
    batch: Batch = {KEY: rows.keys, **(rows.slots or {}), SCORE: rows.scores, STEP: rows.steps}  # type: ignore[dict-item]
    if options.dtype == "int8":
        wide = rounded(values, np.dtype(np.float32), rows.keys, "leave --dtype out, or add --normalize")
        if not (finite := np.isfinite(wide).all(axis=1)).all():
            raise BadInput(f"the row of key {rows.keys[~finite][0]} has a NaN or an infinity, which int8 cannot hold")
        scale = np.max(np.abs(wide), axis=1, initial=0.0) / np.float32(127)
        ratio = np.divide(wide, scale[:, None], out=np.zeros_like(wide), where=scale[:, None] > 0)
        values, batch[SCALE] = np.clip(np.rint(ratio), -127, 127).astype(np.int8), scale.astype(np.float32)
    elif options.dtype is not None:
        values = rounded(values, dtype_of(options.dtype), rows.keys, "choose another --dtype, or leave it out")
    batch[VALUE] = values
    bits = table.metadata.get("bfloat16", [])
    return {
        column.name: widen(batch[column.name]) if column.name in bits else batch[column.name]
        for column in table.columns
    }


def write(
    target: PathOrFile,
    kind: Format,
    table: Table,
    source: kvemb.Variable,
    options: RowOptions,
    progress: Progress | None = None,
    key_range: tuple[int, int] | None = None,
) -> int:
    """Write the rows to export in a format; returns their number. key_range: first and last key, None for all.

    progress(done, total): also called, with 0 rows done, while rows are counted that the format must know beforehand.
    """
    if kind.counted and table.rows is None:
        counting = None if progress is None else lambda _, total: progress(0, total)
        table = Table(table.columns, sum(map(len, scanned(source, options, counting, key_range))), table.metadata)
    return write_rows(target, kind, table, scanned(source, options, progress, key_range), options)


def write_rows(target: PathOrFile, kind: Format, table: Table, rows: Iterator[bulk.Rows], options: RowOptions) -> int:
    """Write rows in a format; returns their number."""
    count = 0

    def batches() -> Iterator[Batch]:
        nonlocal count
        for part in rows:
            count += len(part)
            yield batch_of(part, table, options)

    kind.write(target, table, batches())
    return count
