"""The disk space that marks alone keep: files of their durable points that no other point has. Reads only."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from kvemb.durability import manifest
from kvemb.durability.manifest import Manifest
from kvemb.durability.marks.kept import read_marks
from kvemb.durability.marks.mark import Mark
from kvemb.errors import CheckpointNotFound


def marks_with_bytes(store: Path, current: Manifest) -> list[tuple[Mark, int]]:
    """Return the marks of a store, the oldest first, each with the bytes of files that it alone keeps.

    current: the store's durable point. Raises Corruption, UnsupportedFormat, naming a file.
    """
    points, users = {current.point: current}, defaultdict(list)
    for mark in read_marks(store):
        number = int(mark.path.name)
        with suppress(CheckpointNotFound):  # the store's owner dropped it since it was listed
            points[number] = points.get(number) or manifest.read(mark.path)
            users[number].append(mark)
    holders = defaultdict(set)
    for number, point in points.items():
        for entry in point.files.values():
            holders[entry.sha256].add(number)

    def alone(number: int) -> int:
        if number == current.point or len(users[number]) > 1:
            return 0
        files = {entry.sha256: entry.bytes for entry in points[number].files.values()}
        return sum(nbytes for sha256, nbytes in files.items() if holders[sha256] == {number})

    return [(mark, alone(number)) for number, marks in users.items() for mark in marks]
