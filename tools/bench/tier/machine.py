"""The machine, and the versions of the measured software, on which the results depend."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path

import kvemb
from kvemb.tools.bench.tier.records import Record


def machine(folder: Path) -> Record:
    """Return a description of the machine as plain values. folder: of the tables."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    disk = os.statvfs(folder)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "versions": {"kvemb": kvemb.__version__, **{name: version(name) for name in ("numpy", "numba", "rocksdict")}},
    }
