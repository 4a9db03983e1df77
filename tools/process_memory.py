"""The memory use of this process: its peak, the anonymous memory now, and sampled peaks of each kind of memory."""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path
from types import TracebackType

SAMPLE_SECONDS = 0.05


def peak_bytes() -> int:
    """Return the peak resident size of this process, in bytes.

    On Linux this is VmHWM: getrusage also counts the size of the parent when it started this process.
    """
    found = _status().get("VmHWM")
    if found is not None:
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def anonymous_bytes() -> int:
    """Return the current anonymous memory, in bytes: without pages of mapped files, which belong to the page cache.

    If the system does not report it, returns the peak of all memory.
    """
    found = _status().get("RssAnon")
    return peak_bytes() if found is None else found


class Peaks:
    """Samples memory on a thread, within a `with` block: the kernel keeps only the peak of the sum.

    anonymous, mapped: the largest number of bytes of each so far; mapped is 0 if the system does not report it.
    """

    def __init__(self) -> None:
        self.anonymous = self.mapped = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        over = False
        while not over:
            over = self._done.wait(SAMPLE_SECONDS)
            self.anonymous = max(self.anonymous, anonymous_bytes())
            self.mapped = max(self.mapped, _status().get("RssFile", 0))


def _status() -> dict[str, int]:
    """Return the kernel's figures for this process's memory, in bytes, by name; empty if the system has none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(text.split()[0]) * 1024 for name, text in pairs if name in ("VmHWM", "RssAnon", "RssFile")}
