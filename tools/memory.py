"""The memory use of this process: the peak of all of it, and what is anonymous now."""

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


def anonymous_bytes() -> int:
    """Return the current anonymous memory, in bytes, without pages of mapped files, which belong to the page cache.

    The peak of all memory if the system does not report it.
    """
    found = _status("RssAnon")
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
