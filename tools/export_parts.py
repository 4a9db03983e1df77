"""Exporting by parts: files of ranges of keys in one folder, written by several processes.

The processes end with the one that began them, however that ends: they watch a pipe that it alone holds open.
"""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

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
        context = multiprocessing.get_context("spawn")
        watched, held = context.Pipe(duplex=False)
        workers = ProcessPoolExecutor(min(jobs, len(ranges)), context, _end_with, (watched,))
        with watched, held, workers as pool:
            try:
                work = [
                    pool.submit(_write_part, path, bulk.point(source), source.name, file, kind, part, wish, ends)
                    for file, ends in zip(files, ranges, strict=True)
                ]
                for finished in as_completed(work):
                    done += finished.result()
                    if progress is not None:
                        progress(done, total)
            except BaseException as error:
                held.close()  # else the pool would wait until its processes have written all
                if isinstance(error, BrokenProcessPool):
                    raise BadInput(
                        "a process of --jobs was killed, perhaps for its memory; give fewer --jobs"
                    ) from error
                raise
    return done


_writing = threading.Lock()
# How long a part may take to clean up after itself.
PATIENCE_SECONDS = 5.0


def _end_with(watched: Connection) -> None:
    """Make this process end when nobody holds the other end of a pipe any more."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def watch() -> None:
        watched.poll(None)  # nothing is ever sent: it ends when the other end is closed
        _thread.interrupt_main(signal.SIGTERM)
        _writing.acquire(timeout=PATIENCE_SECONDS)
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=watch, name="kvemb-parent", daemon=True).start()


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
    with _writing, opened(path, variable) as source:
        if bulk.point(source) != point:
            raise BadInput(f"{path} is in use and moved on meanwhile; export a checkpoint, or with --jobs 1")
        return write(file, kind, table, source, wish, ends=ends)
