"""Other processes of a benchmark: one that calls a function, so that its memory is its own, and one that is asked.

Run as a module, this file is the former.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from kvemb.tools.failures import BadInput
from kvemb.tools.stopping import check


def result_of(module: str, function: str, **arguments: Any) -> Any:
    """Return what a function of a module returns in a process of its own. Arguments and result are as in JSON."""
    command = [sys.executable, "-P", "-m", __name__, module, function, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


# How long a process may take to end by itself.
END_SECONDS = 60


class Asked:
    """A process that answers each line on its stdin with a line of JSON; it ends with the block. name: for errors."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._name, self._last, pipe = name, "its beginning", subprocess.PIPE
        # -P: do not search the folder of a script, or the working directory, for modules.
        command = [sys.executable, "-P", *command]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # the process ended before it read the line
                    pipe.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ask(self, line: str) -> Any:
        """Return the answer. Raises BadInput if the process has ended."""
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """Send a line without waiting for its answer."""
        check()
        assert self._process.stdin is not None
        self._last = line
        with suppress(BrokenPipeError):  # answer() says so
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the next answer. Raises BadInput if the process has ended."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise BadInput(f"the process of {self._name} failed at {self._last!r}; its error is above")
        return json.loads(answer)

    def end(self) -> None:
        """Send the end of the lines, upon which the process ends by itself. Several processes may wait for each other,
        so __exit__ waits.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of all processes below it that run now; 0 except on Linux."""
    parents, spent = dict[int, int](), dict[int, int]()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = place.read_text().rpartition(")")[2].split()
            number = int(place.parent.name)
            parents[number], spent[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    below, found = [pid], 0
    while below:
        parent = below.pop()
        found += spent.get(parent, 0)
        below += [number for number, its in parents.items() if its == parent]
    return found / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    called = getattr(import_module(sys.argv[1]), sys.argv[2])
    print(json.dumps(called(**json.loads(sys.argv[3]))))
