"""Which counter file a durable point has for each variable: a new one, or that of the point before, which is linked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from kvemb import fresh_files
from kvemb.durability import layout
from kvemb.durability.admission_counters.counter_file import CounterFile, write_counters
from kvemb.operations.admission_counters import Counters

# Counter files by variable: the folder of each, and its entry in the manifest there.
Stored = dict[str, tuple[Path, CounterFile]]
# Those of other checkpoints, None for a variable that has none there.
Adopted = dict[str, tuple[Path, CounterFile] | None]


def write_counter_files(
    folder: Path,
    number: int,
    variables: Collection[str],
    counted: Mapping[str, Counters | None],
    adopted: Mapping[str, tuple[Path, CounterFile] | None],
    known: Stored,
) -> dict[str, CounterFile]:
    """Write or link the counter file of each of these variables in a folder; returns their entries in the manifest.

    number: of the point, unique to its files. counted: counters that changed, None: they did not; where all are 0, no
    file is needed. adopted: files of other checkpoints, which replace the known ones. known: those of the point before.
    Raises OSError.
    """
    entries: dict[str, CounterFile] = {}
    for at, variable in enumerate(sorted(variables)):
        name = layout.indexed_name(number, at, "counts")
        if (counters := counted.get(variable)) is not None:
            if counters.values.any():
                folder.mkdir(exist_ok=True)
                entries[variable] = write_counters(folder / name, counters)
            continue
        if variable in adopted:
            if (taken := adopted[variable]) is None:
                continue
            source, entry = taken
            entries[variable] = replace(entry, file=name)
        elif variable in known:
            source, entry = known[variable]
            entries[variable] = entry
        else:
            continue
        folder.mkdir(exist_ok=True)
        fresh_files.link_or_copy(source / entry.file, folder / entries[variable].file)
    return entries
