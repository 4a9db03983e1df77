"""Counter files: the counters of an Admission on disk, deflated (FORMAT.md, "Counter file").

A file has frames of at most 1 MiB of counters, each with a checksum. The manifest says how many counters it has.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from kvemb.checks.fields import Accepted, integer, text
from kvemb.checks.ranges import MAX_BUDGET_BYTES, MAX_ROWS
from kvemb.durability.keyfile import deflated, inflated
from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.operations.admission_counters import ROWS, Counters

FRAME_BYTES = 1 << 20
_MAGIC, VERSION = b"kvembcount", 1  # on disk
_HEAD = struct.Struct(">10sH")
_NUMBER = struct.Struct("<I")
# Deflated bytes inflate to at most 1,032 times as many.
_MAX_RATIO = 1100


@dataclass(frozen=True)
class CounterFile:
    """The entry in a manifest for a variable's sightings. file: its counter file in sightings/.

    counters: how many the file has. counted: the sightings since they were halved.
    """

    file: Annotated[str, text(r"[0-9]{6,18}-[0-9]{3,18}\.counts", "a name such as '000007-000.counts'")]
    counters: Annotated[int, integer(4, MAX_BUDGET_BYTES), Accepted("a multiple of 4", lambda number: number % 4 == 0)]
    counted: Annotated[int, integer(0, MAX_ROWS)]


@dataclass(frozen=True)
class CountersSize:
    """What an Admission counted for a variable. The number of distinct keys is not known.

    counted: sightings since the counters began or were last halved. counters: of one byte each. bytes: of their files.
    """

    counted: int
    counters: int
    bytes: int

    def __add__(self, other: CountersSize) -> CountersSize:
        """Return the sum, as for two shards."""
        return CountersSize(self.counted + other.counted, self.counters + other.counters, self.bytes + other.bytes)


def sizes_of(sightings: Mapping[str, CounterFile], files: Mapping[str, int]) -> dict[str, CountersSize]:
    """Return the sizes by variable. sightings: as in a manifest. files: bytes of the checkpoint's files by path."""
    return {
        name: CountersSize(entry.counted, entry.counters, files[f"sightings/{entry.file}"])
        for name, entry in sightings.items()
    }


def write_counters(path: Path, counters: Counters) -> CounterFile:
    """Write a new counter file, without a sync; returns its entry in the manifest. Raises OSError."""
    values = counters.values.reshape(-1).data
    with open(path, "xb") as file:
        file.write(_HEAD.pack(_MAGIC, VERSION))
        for at in range(0, len(values), FRAME_BYTES):
            payload = deflated(values[at : at + FRAME_BYTES])
            head = _NUMBER.pack(len(payload))
            file.write(head + payload + _NUMBER.pack(zlib.crc32(payload, zlib.crc32(head))))
    return CounterFile(path.name, len(values), counters.counted)


def read_counters(folder: Path, entry: CounterFile) -> Counters:
    """Return the counters of an entry in a manifest. folder: of its file.

    Raises Corruption, naming the file; UnsupportedFormat.
    """
    path = folder / entry.file
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error}") from error
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEAD.size:
        raise _damaged(path, "does not begin with the head of a counter file")
    if (version := _HEAD.unpack_from(data)[1]) != VERSION:
        raise UnsupportedFormat(
            f"{path} has format {version}, this kvemb reads format {VERSION}; use the kvemb that wrote it"
        )
    if entry.counters > _MAX_RATIO * len(data):
        raise _damaged(path, f"is too short for {entry.counters:,} counters")
    values, start = np.empty(entry.counters, np.uint8), _HEAD.size
    for at in range(0, len(values), FRAME_BYTES):
        part = values[at : at + FRAME_BYTES]
        if len(data) < start + _NUMBER.size:
            raise _damaged(path, "ends early")
        end = start + _NUMBER.size + _NUMBER.unpack_from(data, start)[0]
        if data[end : end + _NUMBER.size] != _NUMBER.pack(zlib.crc32(data[start:end])):
            raise _damaged(path, "has a frame whose checksum is wrong")
        try:
            part[:] = np.frombuffer(inflated(data[start + _NUMBER.size : end], len(part)), np.uint8)
        except (zlib.error, ValueError) as error:
            raise _damaged(path, f"has a frame with an invalid payload: {error}") from error
        start = end + _NUMBER.size
    if start != len(data):
        raise _damaged(path, "does not end after its last frame")
    return Counters(values.reshape(ROWS, -1), entry.counted)


def _damaged(path: Path, how: str) -> Corruption:
    return Corruption(
        f"{path}, with the sightings of an Admission, {how}; use another checkpoint, or give the Admission another "
        "memory_bytes: sightings then start again at 0"
    )
