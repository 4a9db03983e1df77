"""The command line and offline jobs, built on kvemb's public names only. `main` is the `kvemb` command."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec


def main() -> None:
    """Run the `kvemb` command on sys.argv and leave the process with its exit code."""
    closed = sys.stdout is None
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # else the next file that is opened would take its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 -- as long as we live
    if closed:
        sys.exit(_told("stdout is closed; to throw the output away, say >/dev/null", 1))
    # The library installs without these, so the command must be able to say what is missing.
    if find_spec("typer") is None or find_spec("rich") is None:
        sys.exit(_told("the command line needs typer and rich; install them: pip install 'kvemb[tools]'", 1))
    try:
        from kvemb.tools.cli import run
    except KeyboardInterrupt:
        sys.exit(_told("interrupted", 130))
    sys.exit(run())


def _told(line: str, code: int) -> int:
    with suppress(OSError):
        print(f"kvemb: {line}", file=sys.stderr)
    return code
