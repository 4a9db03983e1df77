"""The command line and the offline tools; they use only kvemb's public names. `main` is the `kvemb` command."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec


def main() -> None:
    """Run the `kvemb` command on sys.argv and exit with its exit code."""
    closed = sys.stdout is None
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # otherwise the next open() would get its file descriptor
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 -- open until exit
    if closed:
        sys.exit(_print_error("stdout is closed; to discard the output, redirect it to /dev/null", 1))
    # The library can be installed without these; the command then has to name what is missing.
    if find_spec("typer") is None or find_spec("rich") is None:
        from kvemb.installed import pip_install

        sys.exit(_print_error(f"the command line needs typer and rich; install them: {pip_install('tools')}", 1))
    try:
        from kvemb.tools.cli import run
    except KeyboardInterrupt:
        sys.exit(_print_error("interrupted", 130))
    sys.exit(run())


def _print_error(line: str, code: int) -> int:
    with suppress(OSError):
        print(f"kvemb: {line}", file=sys.stderr)
    return code
