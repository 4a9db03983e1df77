"""Which rows were hot when a checkpoint was made, as key files in hot/ that cost what changed.

A set is what an odd number of its files have: the first is a whole set, each later one says in which keys the next set
differs from the one before. A file is shared by the checkpoints that name it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvemb.durability import fresh_files, layout
from kvemb.durability.keyfile import odd, read_keys, write_keys
from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.rows.codec import Ordered

# Files of one set before it is written whole again.
MOST_FILES = 8


def read_hot(folder: Path, files: list[str]) -> Iterator[Ordered]:
    """Yield a set, ascending. Raises Corruption, naming a file; OSError."""
    return odd(read_keys(folder / file) for file in files)


def write_hot(
    folder: Path, number: int, hot: dict[str, Ordered], before: Path, known: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Put the sets of some variables, in any order, into a folder, and those of all others as they are known.

    number: of the point, which no file of another bears. before, known: the folder and the names of the sets before.
    Returns the names. A set that is damaged is written whole: it tells what to read first, not what there is. Raises
    OSError.
    """
    names: dict[str, list[str]] = {}
    for variable in {**known, **hot}:
        files = known.get(variable, [])
        if variable in hot:
            path = folder / layout.hot_name(number, len(names))
            files = _next(path, np.sort(hot[variable]), before, files)
        for file in files:
            folder.mkdir(exist_ok=True)
            if not (folder / file).exists():
                fresh_files.link_or_copy(before / file, folder / file)
        if files:
            names[variable] = files
    return names


def _next(path: Path, keys: Ordered, before: Path, files: list[str]) -> list[str]:
    """Write keys (n,), ascending, as a file at path, whole or as the difference to a set; returns the names of all."""
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
    if files and len(files) < MOST_FILES and 2 * count < len(keys):
        write_keys(path, differing)
        return [*files, path.name]
    write_keys(path, [keys])
    return [path.name]
