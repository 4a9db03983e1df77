"""The results of `kvemb bench tier` on disk: one JSON object per line, added as soon as a case is measured.

The first line has the settings of the others, the machine, and the versions of the software; a run continues only a
file with the same settings.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kvemb
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.failures import BadInput

NAME = "tier.jsonl"
Record = dict[str, Any]


class Records:
    """The results in one folder. head: the first line; found: results by case, in the order of measuring."""

    def __init__(self, path: Path, head: Record, found: dict[Case, Record]) -> None:
        self.path, self.head, self.found = path, head, found

    @classmethod
    def opened(cls, folder: Path, settings: Settings, machine: Record, *, resume: bool = False) -> Records:
        """Begin a file in folder, or with resume continue the one there. Raises BadInput if it has other settings, or
        if there is one without resume.
        """
        path, given = folder / NAME, asdict(settings)
        if not path.exists():
            made = cls(path, {"settings": given, "machine": machine}, {})
            _append(path, made.head)
            return made
        if not resume:
            raise BadInput(f"{path} has results; continue it with --resume, or name another file")
        made = cls.read(path)
        had = made.head["settings"]
        if had != given:
            told = ", ".join(f"{name} {had.get(name)}" for name in given if given[name] != had.get(name))
            raise BadInput(f"{path} was measured with other options ({told}); give the same, or another --folder")
        return made

    @classmethod
    def read(cls, path: Path) -> Records:
        """Read a file; an incomplete last line, as after a crash, is cut off. Raises BadInput if it is damaged."""
        text = path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1].splitlines()
        try:
            head, *others = (json.loads(line) for line in lines)
            found = {Case(**record["case"]): record["result"] for record in others}
            head["settings"], head["machine"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} is not a file of results: {error!r}; name another file") from error
        if len(lines) and not text.endswith("\n"):
            os.truncate(path, len(text[: text.rfind("\n") + 1].encode()))
        return cls(path, head, found)

    def add(self, case: Case, result: Record) -> None:
        """Append a result durably."""
        self.found[case] = result
        _append(self.path, {"case": asdict(case), "result": result})


def _append(path: Path, record: Record) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


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
