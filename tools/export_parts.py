"""Export to several files, one for each key range, in one folder, written by several processes.

Worker processes end when their parent does, however it ends: they watch a pipe that only the parent holds open.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path

import kvemb
from kvemb import bulk
from kvemb.tools.destinations import atomic_output
from kvemb.tools.exported_rows import RowWriter
from kvemb.tools.failures import BadInput
from kvemb.tools.reading import Progress, opened


def export_parts(
    path: str | os.PathLike[str],
    source: kvemb.Variable,
    out: str,
    writer: RowWriter,
    parts: int,
    jobs: int,
    progress: Progress | None,
) -> int:
    """Write at most `parts` files to the folder `out`, their names in key order; returns the number of rows.

    All parts are of one durable point. Raises BadInput if the store gets a new one between two jobs.
    """
    if writer.kind.folder:
        raise BadInput(
            f"the output of {writer.kind.name} is one folder and cannot be split; leave out --partitions and --jobs"
        )
    ranges = bulk.ranges(source, parts)
    total, done = source.size(), 0
    with atomic_output(out, folder=True) as folder:
        files = [folder / f"part-{at:05d}-of-{len(ranges):05d}{writer.kind.suffix}" for at in range(len(ranges))]
        if jobs == 1:
            for file, key_range in zip(files, ranges, strict=True):
                done += writer.write(file, source, key_range=key_range)
                if progress is not None:
                    progress(done, total)
            return done
        context = multiprocessing.get_context("spawn")
        watched, held = context.Pipe(duplex=False)
        workers = ProcessPoolExecutor(min(jobs, len(ranges)), context, _end_with, (watched,))
        with watched, held, workers as pool:
            try:
                work = [
                    pool.submit(_write_part, path, bulk.point(source), source.name, file, writer, key_range)
                    for file, key_range in zip(files, ranges, strict=True)
                ]
                for finished in as_completed(work):
                    done += finished.result()
                    if progress is not None:
                        progress(done, total)
            except BaseException as error:
                held.close()  # otherwise the pool waits until its processes have written everything
                if isinstance(error, BrokenProcessPool):
                    raise BadInput(
                        "a process of --jobs was killed, perhaps for lack of memory; use fewer --jobs"
                    ) from error
                raise
    return done


_writing = threading.Lock()
_told_to_end = threading.Event()
# How long the writer of a part may take until it has written its rows at hand and deleted its files.
PATIENCE_SECONDS = 60.0


def _end_with(watched: Connection) -> None:
    """Make this process end when the other end of the pipe is closed.

    The part that it writes ends with the next rows, by _check(). No exception is raised at any other place: imports
    and compilers swallow them, and one between two lines that make and register a folder would leave the folder.
    """

    def watch() -> None:
        watched.poll(None)  # nothing is ever sent: it ends when the other end is closed
        _told_to_end.set()
        _writing.acquire(timeout=PATIENCE_SECONDS)
        os._exit(1)

    # They may reach the whole group; the parent handles them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=watch, name="kvemb-parent", daemon=True).start()


def _check(done: int = 0, total: int = 0) -> None:
    if _told_to_end.is_set():
        raise SystemExit(1)


def _write_part(
    path: str | os.PathLike[str],
    point: str,
    variable: str,
    file: Path,
    writer: RowWriter,
    key_range: tuple[int, int],
) -> int:
    with _writing:
        _check()  # the pool starts its next part after one that was ended
        with opened(path, variable) as source:
            if bulk.point(source) != point:
                raise BadInput(f"{path} changed during the export; export a checkpoint instead, or use --jobs 1")
            return writer.write(file, source, _check, key_range)
