"""A series of checkpoints: those that can be read, how their rows differ, and which are damaged.

A damaged checkpoint does not hide the others: it is named, and its neighbours are compared with each other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import kvemb
from kvemb.errors import CheckpointNotFound, Corruption, KvembError, UnsupportedFormat
from kvemb.tools.diff import Difference, diff
from kvemb.tools.failures import BadInput

# How many of the newest checkpoints are shown, and how many of the rows that moved most.
SHOWN, MOST = 40, 8


@dataclass
class History:
    """The checkpoints that can be read, oldest first. damages: error messages of the others, by their names."""

    checkpoints: list[kvemb.Checkpoint] = field(default_factory=list)
    damages: dict[str, str] = field(default_factory=dict)

    def rows(self, variable: str) -> list[int | None]:
        """Return the number of a variable's rows in each checkpoint, None if it lacks the variable."""
        return [
            checkpoint.variables[variable].rows if variable in checkpoint.variables else None
            for checkpoint in self.checkpoints
        ]

    def new_bytes(self) -> list[int]:
        """Return the bytes of each checkpoint's files that the previous checkpoint lacks."""
        known: set[str] = set()
        found = []
        for checkpoint in self.checkpoints:
            files = checkpoint.inventory.values()
            found.append(sum(entry.bytes for entry in files if entry.sha256 not in known))
            known = {entry.sha256 for entry in files}
        return found

    def changes(self, variable: str) -> list[Difference | None]:
        """Return how a variable's rows in each checkpoint differ from those in the previous readable one.

        None: for the first checkpoint, if the variable is missing, if its schema changed, and for damaged checkpoints,
        which are added to damages.
        """
        found: list[Difference | None] = [None] * len(self.checkpoints)
        before: kvemb.Checkpoint | None = None
        for at, after in enumerate(self.checkpoints):
            if variable not in after.variables:
                before = None
                continue
            if before is None:
                if at and variable not in self.checkpoints[at - 1].variables:
                    found[at] = Difference(variable, False, added=after.variables[variable].rows)
                before = after
                continue
            try:
                (found[at],) = diff(before.path, after.path, variable=variable, top=MOST)
            except (BadInput, CheckpointNotFound):  # another schema, or a checkpoint deleted since it was listed
                before = after
            except Corruption as error:
                damaged = before if f"{before.path}{os.sep}" in str(error) else after
                self.damages.setdefault(damaged.path.name, str(error))
                before = after if damaged is before else before
            else:
                before = after
        return found


def history(root: Path) -> History:
    """Return the newest checkpoints of a series, none if root is not a series.

    Raises Corruption or UnsupportedFormat if there are checkpoints but none can be read.
    """
    manager = kvemb.CheckpointManager(root)
    found = History()
    failure: KvembError | None = None
    for number in manager.numbers()[-SHOWN:]:
        path = manager.path(number)
        try:
            found.checkpoints.append(kvemb.Checkpoint(path))
        except CheckpointNotFound:
            continue  # deleted since it was listed
        except (Corruption, UnsupportedFormat) as error:
            found.damages[path.name] = str(error)
            failure = error
    if failure is not None and not found.checkpoints:
        raise failure
    return found
