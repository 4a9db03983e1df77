"""Other processes of a benchmark: one that calls a function, so that its memory is its own, and one that is asked.

Run as a module, this file is the former.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from kvemb.tools.failures import BadInput
from kvemb.tools.stopping import check


def result_of(module: str, function: str, **arguments: Any) -> Any:
    """Return what a function of a module returns in a process of its own. Arguments and result are as in JSON."""
    command = [sys.executable, "-P", "-m", __name__, module, function, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


class Asked:
    """A process that answers each line on its stdin with a line of JSON; it ends with the block. name: for errors."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._name, pipe = name, subprocess.PIPE
        # -P: do not search the folder of a script, or the working directory, for modules.
        command = [sys.executable, "-P", *command]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # the process ended before it read the line
                    pipe.close()

    def ask(self, line: str) -> Any:
        """Return the answer. Raises BadInput if the process has ended."""
        check()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise BadInput(f"the process of {self._name} failed at {line!r}; its error is above")
        return json.loads(answer)


if __name__ == "__main__":
    called = getattr(import_module(sys.argv[1]), sys.argv[2])
    print(json.dumps(called(**json.loads(sys.argv[3]))))
