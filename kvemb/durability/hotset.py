"""The set of hot keys of each variable at a checkpoint, as key files in hot/ whose cost is proportional to the change.

The first file of a set is complete; each later one is the symmetric difference to the next set. So a key is in the set
if an odd number of its files have it. Checkpoints share the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvemb import fresh_files
from kvemb.durability import layout
from kvemb.durability.keyfile import odd, read_keys, write_keys
from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.rows.codec import Ordered

# Files of one set before it is written as one complete file again.
MAX_FILES = 8


def read_hot(folder: Path, files: list[str]) -> Iterator[Ordered]:
    """Yield the keys of a set, ascending. Raises Corruption, naming a file; OSError."""
    return odd(read_keys(folder / file) for file in files)


def write_hot(
    folder: Path,
    number: int,
    hot: dict[str, Ordered],
    before: Path,
    known: dict[str, list[str]],
    *,
    max_files: int = MAX_FILES,
) -> dict[str, list[str]]:
    """Write the sets of the variables in `hot` (keys in any order) to a folder, and link all other sets.

    number: of the point, unique to its files. before, known: folder and file names of the previous sets. max_files: of
    one set. Returns the file names. If a previous set is damaged, a complete file is written: hot sets only speed up a
    warm start. Raises OSError.
    """
    names: dict[str, list[str]] = {}
    for variable in {**known, **hot}:
        files = known.get(variable, [])
        if variable in hot:
            path = folder / layout.indexed_name(number, len(names))
            files = _next(path, np.sort(hot[variable]), before, files, max_files)
        for file in files:
            folder.mkdir(exist_ok=True)
            if not (folder / file).exists():
                fresh_files.link_or_copy(before / file, folder / file)
        if files:
            names[variable] = files
    return names


def _next(path: Path, keys: Ordered, before: Path, files: list[str], max_files: int) -> list[str]:
    """Write keys (n,), ascending, to a file, complete or as the difference to a set; returns the set's file names."""
    try:
        differing = list(odd([read_hot(before, files), iter([keys])]))
    except (Corruption, UnsupportedFormat):
        differing, files = [keys], []
    count = sum(map(len, differing))
    if files and not count:
        return files
    if not len(keys):
        return []
    path.parent.mkdir(exist_ok=True)
    if files and len(files) < max_files and 2 * count < len(keys):
        write_keys(path, differing)
        return [*files, path.name]
    write_keys(path, [keys])
    return [path.name]
