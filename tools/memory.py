"""How much memory this process has used at most."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Return the largest resident size this process has had, in bytes.

    Linux's VmHWM where there is one: getrusage also counts what the parent had when it started this process.
    """
    found = _status("VmHWM")
    if found is not None:
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Return the resident size now, in bytes; the peak so far where the system does not tell."""
    found = _status("VmRSS")
    return peak_bytes() if found is None else found


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
