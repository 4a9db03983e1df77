"""What runs on the failing disk: python tests/trials.py, with the library of tests/faults.c preloaded.

Reads requests, a line of JSON each, and forks for each: a trial is alone in its process, which has imported everything
and whose kernels are compiled already. The process that forks never opens RocksDB, whose threads do not fork.
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
from pathlib import Path
from typing import Any

from faults import Disk
from history import History

PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def history(
    folder: Path, disk: Disk, *, at: int = 0, error: int = 0, forever: bool = False, only: str = "", **how: Any
) -> None:
    """Run a history whose at-th operation on the disk fails; if that does not kill the process, use the store again."""
    running = History(folder, **how)
    disk.fail(at or 1 << 40, error, forever=forever, only=only)
    running.run()
    (folder / "seen").write_text(f"{disk.seen} {disk.hits}")
    disk.fail(0)
    running.check_reopening()


def full_disk(folder: Path, disk: Disk, *, nbytes: int = -1, place: str | None = None) -> None:
    """Fill the disk: after nbytes, or one mounted at place, which holds a file `ballast` to delete."""
    running = History(folder, place=place)
    disk.fill_up(nbytes)
    running.fill()
    disk.fill_up(-1)
    if place is not None:
        (Path(place) / "ballast").unlink()
    running.check_reopening()


TRIALS = {"history": history, "full_disk": full_disk}


def compile_kernels() -> None:
    """Run a history in a process of its own, on a plain disk: compiled kernels stay on disk."""
    with tempfile.TemporaryDirectory() as folder:
        code = "import sys; from history import History; from pathlib import Path; History(Path(sys.argv[1])).run()"
        (Path(folder) / "root").mkdir()
        subprocess.run([sys.executable, "-c", code, folder], cwd=Path(__file__).parent, env=PLAIN, check=True)


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
    ends, hung = time.monotonic() + request["timeout"], False
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > ends:
            hung = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    status, error = ended[1], told.read_text() if told.exists() else ""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        error += f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    counts = (folder / "seen").read_text().split() if (folder / "seen").exists() else (None, None)
    return {"killed": os.WIFSIGNALED(status), "hung": hung, "error": error,
            "seen": counts[0] and int(counts[0]), "hits": counts[1] and int(counts[1])}  # fmt: skip


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
