"""Exporting by parts: files of ranges of keys in one folder, written by several processes."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import kvemb
from kvemb import bulk
from kvemb.tools.destinations import atomic_directory
from kvemb.tools.export import Wish, write
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import Table
from kvemb.tools.formats.known import Format
from kvemb.tools.reading import Progress, opened


def export_parts(
    path: str | os.PathLike[str],
    source: kvemb.Variable,
    place: str,
    kind: Format,
    table: Table,
    wish: Wish,
    parts: int,
    jobs: int,
    progress: Progress | None,
) -> int:
    """Write at most `parts` files to the folder `place`, in key order by their names; returns how many rows.

    All parts are of one durable point: a store that moves on between two jobs is told, by BadInput.
    """
    if kind.folder:
        raise BadInput(f"{kind.name} is a folder already and cannot be written in parts; leave out --partitions")
    ranges = bulk.ranges(source, parts)
    total, done = source.size(), 0
    part = Table(table.columns, None, table.about)
    with atomic_directory(place, folder=True) as folder:
        files = [folder / f"part-{at:05d}-of-{len(ranges):05d}{kind.suffix}" for at in range(len(ranges))]
        if jobs == 1:
            for file, ends in zip(files, ranges, strict=True):
                done += write(file, kind, part, source, wish, ends=ends)
                if progress is not None:
                    progress(done, total)
            return done
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(min(jobs, len(ranges)), mp_context=context) as pool:
            work = [
                pool.submit(_write_part, path, bulk.point(source), source.name, file, kind, part, wish, ends)
                for file, ends in zip(files, ranges, strict=True)
            ]
            for finished in as_completed(work):
                done += finished.result()
                if progress is not None:
                    progress(done, total)
    return done


def _write_part(
    path: str | os.PathLike[str],
    point: str,
    variable: str,
    file: Path,
    kind: Format,
    table: Table,
    wish: Wish,
    ends: tuple[int, int],
) -> int:
    with opened(path, variable) as source:
        if bulk.point(source) != point:
            raise BadInput(f"{path} is in use and moved on meanwhile; export a checkpoint, or with --jobs 1")
        return write(file, kind, table, source, wish, ends=ends)
