"""The command line and offline jobs, built on kvemb's public names only. `main` is the `kvemb` command."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    """Run the `kvemb` command on sys.argv and leave the process with its exit code."""
    # The library installs without these, so the command must be able to say what is missing.
    if find_spec("typer") is None or find_spec("rich") is None:
        print("kvemb: the command line needs typer and rich; install them: pip install 'kvemb[tools]'", file=sys.stderr)
        sys.exit(1)
    from kvemb.tools.cli import run

    sys.exit(run())
