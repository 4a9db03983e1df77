"""Amending a copy of a database, here or, if it has many families, in a process of its own (rocks_copy).

That process opens the copy and takes steps while the caller prepares the next ones. It is in a session of its own, so
Ctrl-C does not reach it. If this process ends, so does that one.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import rocksdict as rd

from kvemb.backends import rocks_copy
from kvemb.backends.rocks_config import check_config
from kvemb.backends.rocks_copy import Step
from kvemb.backends.rocks_forks import check_threads, keep_in_forks
from kvemb.backends.rocks_scan import translated
from kvemb.contracts import Amendment

# From this number of families on, another process opens the copy. It starts in the time that 16 families take.
MANY = 8
# The pause between calls that hold the GIL, so that other threads can take it.
YIELD_SECONDS = 0.001
_logger = logging.getLogger("kvemb")


class RocksAmendment(Amendment):
    """Changes to a copy, which is opened at the first step. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path, self._steps = path, list[Step]()
        self._process: CopyProcess | None = None

    def drop(self, name: str) -> None:
        self._take(["drop", name])

    def ingest(self, name: str, file: Path) -> None:
        self._take(["ingest", name, str(file)])

    def _take(self, step: Step) -> None:
        with translated(f"amend {self._path}"):
            if not self._steps and self._elsewhere:
                self._process = CopyProcess.start(self._path)
            self._steps.append(step)
            if self._process is not None:
                self._process.send(step)

    @cached_property
    def _elsewhere(self) -> bool:
        """Whether another process opens the copy. An application may embed Python, and have no program of it."""
        check_config(self._path)
        return "python" in os.path.basename(sys.executable or "").lower() and (
            len(rd.Rdict.list_cf(str(self._path))) > MANY  # one more is RocksDB's own
        )

    def finish(self) -> None:
        with translated(f"amend {self._path}"):
            done = self._process is not None and self._process.finish()
            if self._steps and not done:
                check_threads()
                keep_in_forks(self)
                rocks_copy.amend(self._path, _yielding(self._steps))
        for scratch in (*self._path.glob("LOG*"), self._path / "LOCK"):
            scratch.unlink(missing_ok=True)

    def abandon(self) -> None:
        if self._process is not None:
            self._process.kill()


class CopyProcess:
    """The process that amends one copy. What it writes is less than its pipe holds, so it is read at the end."""

    def __init__(self, process: Any) -> None:  # a Popen, with pipes
        self._process = process

    @classmethod
    def start(cls, path: Path) -> CopyProcess | None:
        """Start it; returns None if the system refuses, and says so in the log."""
        packages = Path(rd.__file__).parent.parent
        # Without site-packages and their start-up code; -P: without the folder of the file.
        command = [sys.executable, "-S", "-P", rocks_copy.__file__, str(path), str(packages)]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            started = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, bufsize=0, start_new_session=True)
            return cls(started)
        except OSError as error:
            _warn(error)
            return None

    def send(self, step: Step) -> None:
        """Give it a step. One that has ended is given no more: finish() tells why."""
        line = memoryview(json.dumps(step).encode() + b"\n")
        try:
            while line:
                line = line[self._process.stdin.write(line) :]
        except BrokenPipeError:
            pass

    def finish(self) -> bool:
        """Wait until all steps are taken; returns False if none was, because the process could not open any copy.

        Raises RuntimeError, with RocksDB's text unless the process was ended.
        """
        self.send(["end"])
        told = self._end()
        if not told:
            _warn(f"it ended with status {self._process.returncode}")
            return False
        if "failed" in told[-1]:
            raise RuntimeError(told[-1]["failed"])
        if "done" not in told[-1]:
            raise RuntimeError(f"the process that did it ended early, with status {self._process.returncode}")
        return True

    def kill(self) -> None:
        """End it, whatever it is doing, unless it has ended."""
        self._process.kill()
        if not self._process.stdout.closed:
            self._end()

    def _end(self) -> list[dict[str, str]]:
        """Wait until it has ended; returns what it told."""
        self._process.stdin.close()
        self._process.wait()
        with self._process.stdout as pipe:
            # A process that was forked from this one meanwhile may have the pipe open: it would not end.
            os.set_blocking(pipe.fileno(), False)
            return [json.loads(line) for line in (pipe.read() or b"").splitlines() if line.startswith(b"{")]


def _warn(reason: object) -> None:
    _logger.warning("no process opens the copy for a checkpoint, so other threads wait meanwhile: %s", reason)


def _yielding(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        time.sleep(YIELD_SECONDS)
