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
class RowWriter:
    """Writes rows in a format: which rows and columns, and how.

    other_columns: those of SLOTS, SCORE and STEP that are exported. dtype: of the values; None keeps theirs.
    batch_rows: rows that are read and written at a time.
    """

    kind: Format
    other_columns: tuple[str, ...] = ()
    dtype: str | None = None
    normalize: bool = False
    where: Where = Where()  # noqa: RUF009 -- frozen
    batch_rows: int = BATCH_ROWS

    def table(self, source: kvemb.Variable) -> Table:
        """Return the columns and the metadata of a variable's export. Raises BadInput if the format cannot hold them.

        Columns of bfloat16 become float32, which keeps every bit, if the format has no bfloat16.
        """
        metadata: dict[str, Any] = {"format": METADATA_FORMAT, **bulk.described(source)}
        given = source.value_dtype if self.dtype is None else dtype_of(self.dtype)
        if self.where.has_key and source.key_dtype.kind == "O":
            raise BadInput(f"--where compares integers, and the keys of {source.name!r} are strings; use score or step")
        columns = [Column(KEY, source.key_dtype), Column(VALUE, given, source.dim)]
        if self.normalize and given.kind in "iu" and self.dtype != "int8":
            raise BadInput(f"--normalize needs floats, the values are {given.name}; add --dtype float16")
        if self.dtype == "int8":
            columns.append(Column(SCALE, np.dtype(np.float32)))
        if SLOTS in self.other_columns:
            columns += [Column(slot["name"], bulk.slot_dtype(source), slot["width"]) for slot in metadata["slots"]]
        columns += [Column(SCORE, np.dtype(np.float64))] * (SCORE in self.other_columns)
        columns += [Column(STEP, np.dtype(np.int64))] * (STEP in self.other_columns)
        if self.dtype is None and not self.normalize and not self.where:
            metadata["whole"] = {SLOTS, SCORE, STEP} <= set(self.other_columns)
        narrow = [column.name for column in columns if column.dtype.name == "bfloat16"]
        if narrow and (self.kind.dtypes is None or "bfloat16" not in self.kind.dtypes):
            metadata["bfloat16"] = narrow
            wide = np.dtype(np.float32)
            columns = [replace(column, dtype=wide) if column.name in narrow else column for column in columns]
        table = Table(columns, None, metadata)
        self.kind.check(table)
        return table

    def batch(self, rows: bulk.Rows, table: Table) -> Batch:
        """Return rows as a batch of a table's columns."""
        values = rows.values
        if self.normalize:
            values = unit(values).astype(rows.values.dtype if self.dtype is None else np.float32)
        batch: Batch = {KEY: rows.keys, **(rows.slots or {}), SCORE: rows.scores, STEP: rows.steps}
        if self.dtype == "int8":
            wide = rounded(values, np.dtype(np.float32), rows.keys, "leave --dtype out, or add --normalize")
            if not (finite := np.isfinite(wide).all(axis=1)).all():
                key = rows.keys[~finite][0]
                raise BadInput(f"the row of key {key} has a NaN or an infinity, which int8 cannot hold")
            scale = np.max(np.abs(wide), axis=1, initial=0.0) / np.float32(127)
            ratio = np.divide(wide, scale[:, None], out=np.zeros_like(wide), where=scale[:, None] > 0)
            values, batch[SCALE] = np.clip(np.rint(ratio), -127, 127).astype(np.int8), scale.astype(np.float32)
        elif self.dtype is not None:
            values = rounded(values, dtype_of(self.dtype), rows.keys, "choose another --dtype, or leave it out")
        batch[VALUE] = values
        for name in table.metadata.get("bfloat16", []):
            batch[name] = widen(batch[name])
        return {column.name: batch[column.name] for column in table.columns}

    def scan(
        self, source: kvemb.Variable, progress: Progress | None, key_range: tuple[int, int] | None = None
    ) -> Iterator[bulk.Rows]:
        """Yield the rows to export. key_range: first and last key, None for all."""
        first, last = self.where.narrowed(*(key_range or (None, None)))
        scan = bulk.scan(source, self.batch_rows, first=first, last=last)
        for rows in with_progress(scan, progress, source.size()):
            part = selected(rows, self.where.mask(rows)) if self.where.clauses else rows
            if len(part):
                yield part

    def write(
        self,
        target: PathOrFile,
        source: kvemb.Variable,
        progress: Progress | None = None,
        key_range: tuple[int, int] | None = None,
    ) -> int:
        """Write the rows to export; returns their number. key_range: first and last key, None for all.

        progress(done, total): also called, with 0 rows done, while rows are counted that the format must know
        beforehand.
        """
        table = self.table(source)
        if self.kind.counted and (self.where or key_range):
            counting = None if progress is None else lambda _, total: progress(0, total)
            table.rows = sum(map(len, self.scan(source, counting, key_range)))
        elif self.kind.counted:
            table.rows = source.size()
        return self.write_rows(target, table, self.scan(source, progress, key_range))

    def write_rows(self, target: PathOrFile, table: Table, rows: Iterator[bulk.Rows]) -> int:
        """Write rows; returns their number."""
        count = 0

        def batches() -> Iterator[Batch]:
            nonlocal count
            for part in rows:
                count += len(part)
                yield self.batch(part, table)

        self.kind.write(target, table, batches())
        return count
