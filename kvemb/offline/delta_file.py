"""Delta files: the rows by which one checkpoint differs from an earlier one, in one file (FORMAT.md, "Delta file").

For each variable a file has, in key order, the records that may have changed and the keys whose records were removed.
It names the checkpoint that it begins with and the one that it leads to. Files of the same two checkpoints are equal
byte for byte. Memory is bounded by one frame for each file that is read.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import numpy as np

from kvemb.checks.fields import Accepted, Id, as_json, integer, read
from kvemb.durability.delta import epochs_since
from kvemb.durability.epochs import dropped_variables
from kvemb.durability.manifest import FileEntry, Manifest
from kvemb.durability.readable import opened
from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import KEY_BYTES, Ordered, order_keys, pack_rows, record_dtype, unordered_keys, unpack_rows
from kvemb.rows.schema import Schema

FRAME_BYTES = 256 << 10
MAX_HEAD_BYTES = 256 << 20
_MAGIC, VERSION = b"kvembdelta", 1  # on disk
_HEAD = struct.Struct(">10sHI")  # magic, version, bytes of the JSON that follows
_FRAME = struct.Struct("<III")  # number of the variable, rows, removed keys
_END = 0xFFFFFFFF  # instead of the number of a variable, in the last frame
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class DeltaPart:
    """A variable in a delta. cleared: it has only the rows of this delta. record_bytes: of each of its records."""

    name: Annotated[str, Accepted("a variable's name", lambda name: type(name) is str and name != "")]
    cleared: bool
    record_bytes: Annotated[int, integer(1, 1 << 31)]


@dataclass(frozen=True)
class _Head:
    """The JSON at the beginning of a file."""

    id: Id
    since: Id
    variables: list[DeltaPart]


def frame_rows(record_bytes: int, frame_bytes: int = FRAME_BYTES) -> int:
    """Return the largest number of rows in a frame."""
    return max(1, frame_bytes // (KEY_BYTES + record_bytes))


def write_delta(
    checkpoint: Path, described: Manifest, before: Manifest, path: Path, max_bytes: int, frame_bytes: int = FRAME_BYTES
) -> FileEntry | None:
    """Write the delta from the checkpoint `before` to a later one, at `checkpoint`; returns its size and checksum.

    Returns None if it would have more than max_bytes, or if the recorded changes do not describe a variable completely;
    the file may then be incomplete. Raises CheckpointNotFound if the recorded changes do not reach back to `before`;
    Corruption naming a local file; OSError.
    """
    epochs = epochs_since(checkpoint, described, before.id)
    gone = dropped_variables(epochs)
    with opened(checkpoint, described) as after:
        parts, streams = [], []
        for name, entry in sorted(described.variables.items()):
            earlier = before.variables.get(name)
            record_bytes = record_dtype(entry.schema).itemsize
            cleared, recorded = after.recorded(epochs, name, frame_rows(record_bytes, frame_bytes))
            cleared = cleared or earlier is None or name in gone
            if name in described.left_out or (not cleared and earlier is not None and earlier.schema != entry.schema):
                return None
            parts.append(DeltaPart(name, cleared, record_bytes))
            streams.append(recorded)
        with open(path, "xb") as file:
            writer = _Writer(file)
            writer.head(_Head(described.id, before.id, parts))
            for number, (part, recorded) in enumerate(zip(parts, streams, strict=True)):
                entry, found = described.variables[part.name], 0
                cold = after.rows(part.name)
                assert cold is not None
                for ordered in recorded:
                    rows, exists = cold.read(unordered_keys(ordered, entry.schema))
                    found += len(rows)
                    writer.frame(number, rows, ordered[:0] if part.cleared else ordered[~exists])
                    if writer.nbytes > max_bytes:
                        return None
                if part.cleared and found != entry.rows:
                    return None
            writer.end()
            return FileEntry(writer.nbytes, writer.digest.hexdigest())


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._frames = file, 0
        self.nbytes, self.digest = 0, hashlib.sha256()

    def head(self, head: _Head) -> None:
        text = json.dumps(head, default=as_json).encode()
        self._write(_HEAD.pack(_MAGIC, VERSION, len(text)) + text)

    def frame(self, number: int, rows: RowBlock, removed: Ordered) -> None:
        if len(rows) == len(removed) == 0:
            return
        self._frames += 1
        packed = pack_rows(rows) + removed.astype(">u8").tobytes()
        self._write(_FRAME.pack(number, len(rows), len(removed)) + packed)

    def end(self) -> None:
        self._write(_FRAME.pack(_END, self._frames, 0))
        self._file.flush()

    def _write(self, data: bytes) -> None:
        data += _CHECKSUM.pack(zlib.crc32(data))
        self._file.write(data)
        self.digest.update(data)
        self.nbytes += len(data)


class DeltaFile:
    """A delta file. what: its name in errors. id: of the checkpoint that it leads to. since: of the one that it begins
    with. parts: by variable. The constructor reads the positions of its frames. Raises Corruption, UnsupportedFormat,
    OSError.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._frames: dict[str, list[int]] = {}
        with open(path, "rb") as file:
            begins = file.read(_HEAD.size)
            if len(begins) < _HEAD.size or not begins.startswith(_MAGIC):
                raise self._damaged("it does not begin with the head of a delta")
            _, version, size = _HEAD.unpack(begins)
            if version != VERSION:
                raise UnsupportedFormat(f"{what} has format {version}, this kvemb reads {VERSION}; use a newer kvemb")
            if size > MAX_HEAD_BYTES:
                raise self._damaged(f"its head says that it has {size:,} bytes")
            text = file.read(size)
            self._check(begins + text, file.read(_CHECKSUM.size))
            try:
                head = read(_Head, json.loads(text))
            except (ValueError, RecursionError) as error:
                raise self._damaged(str(error)) from error
            self.id, self.since, self.parts = head.id, head.since, {part.name: part for part in head.variables}
            self._find_frames(file, [part.name for part in head.variables])

    def _find_frames(self, file: IO[bytes], names: list[str]) -> None:
        count = 0
        while True:
            at = file.tell()
            head = file.read(_FRAME.size)
            if len(head) < _FRAME.size:
                raise self._damaged("it ends early")
            number, rows, removed = _FRAME.unpack(head)
            if number == _END:
                self._check(head, file.read(_CHECKSUM.size))
                if rows != count or file.read(1):
                    raise self._damaged(f"it has {count:,} frames and should have {rows:,}")
                return
            if number >= len(names):
                raise self._damaged(f"it has a frame of variable {number}, but only {len(names)} variables")
            self._frames.setdefault(names[number], []).append(at)
            file.seek(self._bytes(names[number], rows, removed) + _CHECKSUM.size, 1)
            count += 1

    def _bytes(self, name: str, rows: int, removed: int) -> int:
        """Return the bytes of a frame between its head and its checksum."""
        record_bytes = self.parts[name].record_bytes
        if rows + removed > frame_rows(record_bytes):
            raise self._damaged(f"it has a frame of {rows + removed:,} rows")
        return KEY_BYTES * (rows + removed) + record_bytes * rows

    def rows(self, name: str, schema: Schema) -> Iterator[RowBlock]:
        """Yield a variable's rows in key order, block by block; rows flagged REMOVED were removed."""
        if (part := self.parts[name]).record_bytes != record_dtype(schema).itemsize:
            raise self._damaged(f"records of {name!r} have {part.record_bytes} bytes")
        last = -1
        with open(self._path, "rb") as file:
            for at in self._frames.get(name, []):
                file.seek(at)
                head = file.read(_FRAME.size)
                _, rows, removed = _FRAME.unpack(head)
                payload = file.read(self._bytes(name, rows, removed))
                self._check(head + payload, file.read(_CHECKSUM.size))
                end = len(payload) - KEY_BYTES * removed
                block = _block(payload[:end], rows, payload[end:], schema)
                ordered = order_keys(block.keys, schema)
                if len(ordered) and (int(ordered[0]) <= last or (ordered[1:] <= ordered[:-1]).any()):
                    raise self._damaged(f"keys of {name!r} do not ascend")
                last = int(ordered[-1]) if len(ordered) else last
                yield block

    def _check(self, data: bytes, checksum: bytes) -> None:
        if checksum != _CHECKSUM.pack(zlib.crc32(data)):
            raise self._damaged("a checksum is wrong")

    def _damaged(self, how: str) -> Corruption:
        return Corruption(f"{self._what} is damaged: {how}; push a later checkpoint with whole=True")


def _block(packed: bytes, rows: int, removed: bytes, schema: Schema) -> RowBlock:
    """Return the rows of a frame in key order, removed ones flagged."""
    gone = unordered_keys(np.frombuffer(removed, ">u8").astype(np.uint64), schema)
    found = unpack_rows(packed, rows, schema)
    if not len(gone):
        return found
    both = RowBlock(schema, rows + len(gone))
    both.put(slice(0, rows), found)
    both.keys[rows:], both.flags[rows:] = gone, REMOVED
    return both.select(np.argsort(order_keys(both.keys, schema)))
