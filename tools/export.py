"""Export a variable of a checkpoint or a store to a file format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.masking import masked
from kvemb.tools.destinations import PIPE, atomic_output, uncompressed
from kvemb.tools.export_parts import export_parts
from kvemb.tools.exported_rows import BATCH_ROWS, RowWriter
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import SCORE, SLOTS, STEP
from kvemb.tools.formats.known import format_of, names
from kvemb.tools.limits import MAX_JOBS, MAX_PARTS
from kvemb.tools.reading import Progress, all_opened, opened, readable, rows_of, selected
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
    changed since are written, and the keys of removed rows to NAME.removed.npy next to out. dtype: float16, bfloat16 or
    int8, the last with a column `scale` to multiply by. normalize: scale each row to norm 1. with_slots, with_scores:
    columns for the optimizer's slots, and for score and step of the last change. partitions: number of files, one for
    each key range, in a folder. jobs: number of processes that write them. batch_rows: rows that are read and written
    at a time. progress(done, total): bytes, while a checkpoint is pulled, and rows.

    Raises BadInput, FileExistsError, and what opening path raises; then out is not created.
    """
    (done,) = _export(
        path,
        out,
        variable=variable,
        format=format,
        where=where,
        since=since,
        dtype=dtype,
        normalize=normalize,
        with_slots=with_slots,
        with_scores=with_scores,
        partitions=partitions,
        jobs=jobs,
        batch_rows=batch_rows,
        progress=progress,
    )
    return done


def export_all(path: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> list[Exported]:
    """Write all variables of a place to the new folder out, each to a file or folder of its name; of one durable point.

    A slash in a name becomes %2F, a percent sign %25. options: those of export, but for variable; format must be given.
    Raises what export raises; then out is not created.
    """
    if options.get("format") is None:
        raise WrongUsage(f"--all writes a folder of files; give --format, one of {names(written=True)}")
    if os.fspath(out) == PIPE:
        raise WrongUsage("--all writes a folder, but a pipe takes one table; name a folder, or give --variable")
    return _export(path, os.fspath(out), every=True, **options)


def _export(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | IO[bytes],
    *,
    every: bool = False,
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
) -> list[Exported]:
    conditions = parse_where([where] if isinstance(where, str) else list(where))
    if dtype not in (None, "float16", "bfloat16", "int8"):
        raise WrongUsage(f"--dtype must be float16, bfloat16 or int8, got {dtype!r}")
    target = out if not isinstance(out, (str, os.PathLike)) else os.fspath(out)
    if isinstance(target, str) and (plain := uncompressed(target)) != target:
        raise WrongUsage(f"exports are not compressed; export to {masked(plain)}, and compress that")
    kind = format_of(format, target if isinstance(target, str) else PIPE, written=True)
    asked = (SLOTS,) * with_slots + (SCORE, STEP) * with_scores
    writer = RowWriter(kind, kind.always or asked, dtype, normalize, conditions, batch_rows)
    if (partitions > 1 or jobs > 1) and (since is not None or not isinstance(target, str)):
        raise WrongUsage("--partitions and --jobs write a folder of files; leave them out with --since and with a pipe")
    for what, number, most in (("--partitions", partitions, MAX_PARTS), ("--jobs", jobs, MAX_JOBS)):
        if not 1 <= number <= most:
            raise WrongUsage(f"{what} must be at least 1 and at most {most:,}")
    with ExitStack() as stack:
        earlier = None if since is None else stack.enter_context(readable(since, progress))
        here = stack.enter_context(readable(path, progress, since=earlier))
        exporter = _Exporter(here, writer, earlier, partitions, jobs, progress)
        if not every:
            source = stack.enter_context(opened(here, variable, named=path, or_all=True))
            return [exporter.write(source, target)]
        sources = stack.enter_context(all_opened(here, named=path))
        folder = stack.enter_context(atomic_output(cast(str, target), folder=True))
        done = []
        for source in sources:
            file = f"{source.name.replace('%', '%25').replace('/', '%2F')}{kind.suffix}"
            made = exporter.write(source, str(folder / file))
            done.append(replace(made, out=f"{cast(str, target).rstrip('/')}/{file}"))
        return done


@dataclass(frozen=True)
class _Exporter:
    """Writes variables of a local place. earlier: the checkpoint since which changes are written, if any."""

    here: Path
    writer: RowWriter
    earlier: Path | None
    partitions: int
    jobs: int
    progress: Progress | None

    def write(self, source: kvemb.Variable, target: str | IO[bytes]) -> Exported:
        """Write one variable. Raises BadInput, FileExistsError."""
        writer, kind, progress = self.writer, self.writer.kind, self.progress
        table, removed = writer.table(source), 0
        if self.earlier is not None:
            rows, removed = _export_changes(kvemb.Checkpoint(self.here), source, target, writer, self.earlier, progress)
        elif not isinstance(target, str):
            if not kind.pipe:
                raise BadInput(f"{kind.name} cannot be written to a pipe; name a file")
            rows = writer.write(target, source, progress)
            target.flush()
        elif self.partitions > 1 or self.jobs > 1:
            parts = max(self.partitions, self.jobs)
            rows = export_parts(self.here, source, target, writer, parts, self.jobs, progress)
        else:
            with atomic_output(target, folder=kind.folder) as made:
                rows = writer.write(made, source, progress)
        slots = any(table.column(slot["name"]) is None for slot in table.metadata["slots"])
        scores = source.restrict_policy is not None and table.column(SCORE) is None
        left_out = (SLOTS,) * slots + ("scores",) * scores
        return Exported(rows, removed, target if isinstance(target, str) else PIPE, kind.name, source.name, left_out)


def _export_changes(
    checkpoint: kvemb.Checkpoint,
    source: kvemb.Variable,
    target: str | IO[bytes],
    writer: RowWriter,
    since: str | os.PathLike[str],
    progress: Progress | None,
) -> tuple[int, int]:
    """Write the rows that changed since a checkpoint, and the removed keys to a separate file; returns how many."""
    if not isinstance(target, str):
        raise BadInput("--since writes two files, but a pipe takes one; name a file")
    changes = checkpoint.changes(since, variables=[source.name])
    if writer.kind.counted:
        raise BadInput(
            f"{writer.kind.name} begins with the number of rows, which is unknown with --since; choose another format"
        )
    removed: list[Any] = [np.empty(0, source.key_dtype)]
    table, where = writer.table(source), writer.where
    table.metadata["whole"] = False

    def rows() -> Iterator[bulk.Rows]:
        done = 0
        for change in changes:
            removed.append(change.removed[where.in_range(change.removed)])
            part = rows_of(change)
            part = selected(part, where.mask(part)) if where else part
            if len(part):
                yield part
            done += len(change.keys)
            if progress is not None:
                progress(done, 0)

    gone_to = path_of_removed(target)
    with atomic_output(gone_to, folder=False) as gone, atomic_output(target, folder=writer.kind.folder) as made:
        count = writer.write_rows(made, table, rows())
        with open(gone, "wb") as file:
            gone_keys = np.concatenate(removed)
            np.save(file, gone_keys.astype(np.str_) if gone_keys.dtype == object else gone_keys)
    return count, sum(map(len, removed))


def path_of_removed(out: str) -> str:
    """Return the path of the removed keys of an export to out."""
    path = out.rstrip("/")
    stem, dot, ending = path.rpartition(".")
    return f"{stem if dot and '/' not in ending else path}.removed.npy"
