"""Commands whose output nobody reads: the reader of the pipe has gone before the command begins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run_unread(command: list[str], cwd: Path, *, errors_too: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command with such a pipe as its stdout. errors_too: as its stderr, too."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        errors = subprocess.STDOUT if errors_too else subprocess.PIPE
        return subprocess.run(command, cwd=cwd, stdout=writing, stderr=errors, text=True, timeout=300)
    finally:
        os.close(writing)
