"""Python programs that tests run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

# The command, before its arguments.
KVEMB = [sys.executable, "-c", "from kvemb.tools import main; main()"]


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, which may be indented, and return what it printed. options: those of subprocess.run."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **{"timeout": 600, **options})
