"""The memory use of this process: peak and current resident size."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """Return the peak resident size of this process, in bytes.

    On Linux this is VmHWM: getrusage also counts the size of the parent when it started this process.
    """
    found = _status("VmHWM")
    if found is not None:
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Return the current resident size, in bytes; the peak if the system does not report it."""
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
