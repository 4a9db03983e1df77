"""Trials on the failing disk: python tests/trials.py, with the library of tests/faults.c preloaded.

Reads requests, one line of JSON each, and forks for each: every trial has its own process, with all modules imported
and all kernels compiled. The process that forks never opens RocksDB, whose threads do not fork.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import retries
from faults import Disk, keep_crash
from history import BUDGET, History

import kvemb
from kvemb.handle import inside
from kvemb.rows import hashing

PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def history(
    folder: Path, disk: Disk, *, at: int = 0, error: int = 0, forever: bool = False, only: str = "", **how: Any
) -> None:
    """Run a history whose at-th operation on the disk fails, and use the store again."""
    running = History(folder, **how)
    disk.fail(at or 1 << 40, error, forever=forever, only=only)
    running.run()
    (folder / "seen").write_text(f"{disk.seen} {disk.hits}")
    disk.fail(0)
    running.check_reopening()


def crashes(folder: Path, disk: Disk, *, first: int, every: int, **how: Any) -> None:
    """Run a history; the process is stopped at operations first, first + every ... and its files are copied."""
    disk.stop(first, every)
    history(folder, disk, **how)


def full_disk(folder: Path, disk: Disk, *, nbytes: int = -1, place: str | None = None) -> None:
    """Fill the disk: after nbytes, or one mounted at place, which holds a file `ballast` to delete."""
    running = History(folder, place=place)
    disk.fill_up(nbytes)
    running.fill()
    disk.fill_up(-1)
    if place is not None:
        (Path(place) / "ballast").unlink()
    running.check_reopening()


def saving(folder: Path, disk: Disk) -> None:
    """Save a row into a series; from its publishing on, the process is stopped at each operation."""
    (folder / "events").touch()
    with kvemb.open(folder / "root" / "store", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=1).upsert([1], np.ones((1, 1), np.float32))
        points = inside(store).points
        points.publish = partial(_publish, disk, points.publish)  # type: ignore[method-assign]
        with kvemb.CheckpointManager(folder / "root" / "series") as manager:
            manager.save(store)
        disk.fail(0)


def _publish(disk: Disk, publish: Callable[..., None], *args: Any, **how: Any) -> None:
    disk.stop(1, 1)
    disk.fail(1 << 40)
    publish(*args, **how)


def ready(folder: Path, disk: Disk) -> None:
    """Make what the calls of tests/retries.py begin with."""
    retries.ready(folder)


TRIALS = {
    "saving": saving,
    "history": history,
    "crashes": crashes,
    "full_disk": full_disk,
    "ready": ready,
    "retried": retries.retried,
    "without_links": retries.without_links,
}


def compile_kernels() -> None:
    """Run a history in a separate process, on a plain disk: compiled kernels stay on disk."""
    with tempfile.TemporaryDirectory() as folder:
        code = "import sys; from history import History; from pathlib import Path; History(Path(sys.argv[1])).run()"
        (Path(folder) / "root").mkdir()
        subprocess.run([sys.executable, "-c", code, folder], cwd=Path(__file__).parent, env=PLAIN, check=True)
    # numba takes half a second to load the first one.
    hashing.Unique(np.arange(2))


def fork_and_run(request: dict[str, Any], disk: Disk) -> dict[str, Any]:
    """Run a trial; returns the fields of faults.Trial."""
    folder = Path(request["folder"])
    told = folder / "error"
    child = os.fork()
    if child == 0:
        with open(told, "w") as file:
            try:
                faulthandler.enable(file)
                faulthandler.dump_traceback_later(request["timeout"] - 1, file=file)
                if not (folder / "root").exists():
                    disk.begin(folder / "root", folder / "shadow")
                TRIALS[request["name"]](folder, disk, **request["arguments"])
            except BaseException:
                traceback.print_exc(file=file)
                file.flush()
                os._exit(1)
        os._exit(0)
    ends, hung, stopped = time.monotonic() + request["timeout"], False, 0
    while True:
        changed, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if changed and not os.WIFSTOPPED(status):
            break
        if changed:
            keep_crash(folder, folder / f"crash-{stopped}")
            stopped += 1
            os.kill(child, signal.SIGCONT)
        elif time.monotonic() > ends:
            hung = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    error = told.read_text() if told.exists() else ""
    if os.WIFSIGNALED(status) and not hung:
        error += f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    counts = (folder / "seen").read_text().split() if (folder / "seen").exists() else (None, None)
    return {"hung": hung, "error": error, "seen": counts[0] and int(counts[0]), "hits": counts[1] and int(counts[1])}


def main() -> None:
    """Serve until the input ends."""
    warnings.simplefilter("error")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    disk = Disk()
    compile_kernels()
    with answers:
        for line in sys.stdin:
            answers.write(json.dumps(fork_and_run(json.loads(line), disk)) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
