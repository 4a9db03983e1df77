"""Hostile metadata: values that no field expects, and descriptions with one of them in any place."""

from __future__ import annotations

import copy
import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from kvemb.durability import keyfile, manifest
from kvemb.journal import segment_files

# JSON that Python's encoder refuses, or that the reader must accept: written as text.
RAW = {
    "nested": "[" * 100_000 + "]" * 100_000,
    "nested objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "digits": "9" * 5000,
}
VALUES: list[Any] = [
    *(None, True, False, "", "x", "x" * 100_000, "\x1b[31m\n", "\ud800", "../../etc", "a\0b", "default", "NaN"),
    *(-1, 0, 1, 2, 2**31, 2**32, 2**62, 2**63, 2**70, -(2**63), 10**400, 0.5, -0.0, 1e300, float("nan"), float("inf")),
    *([], {}, [[]], [None], ["x"], [3] * 9, {"x": 1}, {"kind": "x"}, {"": {}}),
]
DEEP: Any = 1
for _ in range(400):
    DEEP = [DEEP]
VALUES.append(DEEP)

_KINDS = (segment_files.ROWS, segment_files.REMOVED, segment_files.CLEARED, segment_files.CONTINUED)

Path = tuple[str | int, ...]
MISSING, EXTRA = object(), object()
_PLACE = "the place of raw JSON"


def places(data: Any, path: Path = ()) -> Iterator[Path]:
    """Yield every place in JSON: every field of every object, and the first element of every array."""
    inner = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for name, value in inner:
        yield (*path, name)
        yield from places(value, (*path, name))


def changed(data: Any, path: Path, value: object) -> Any:
    """Return a copy with another value in a place, or without that field, or with one more field there."""
    data = copy.deepcopy(data)
    parent = data
    for part in path[:-1]:
        parent = parent[part]
    if value is MISSING:
        del parent[path[-1]]
    elif value is EXTRA:
        if isinstance(parent[path[-1]], dict):
            parent[path[-1]]["extra"] = 1
    else:
        parent[path[-1]] = value
    return data


def manifests(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (what, text) for every manifest with one hostile value; the checksum fits wherever there can be one."""
    data = {name: field for name, field in data.items() if name != "checksum"}
    # Only the first of similar files.
    seen: set[str] = set()
    for path in places(data):
        if path[0] == "files" and len(path) > 1:
            kind = re.sub(r"[0-9]+", "", "/".join(map(str, path)))
            if kind in seen:
                continue
            seen.add(kind)
        for value in (*VALUES, MISSING, EXTRA):
            what = f"{path} = {'missing' if value is MISSING else 'extra' if value is EXTRA else repr(value)[:60]}"
            yield what, signed(changed(data, path, value))
        for name, text in RAW.items():
            yield f"{path} = {name}", signed(changed(data, path, _PLACE)).replace(json.dumps(_PLACE), text)
    yield "extra", signed({**data, "extra": 1})


def signed(data: dict[str, Any]) -> str:
    """Return a manifest's text, with a checksum that fits."""
    data = {name: field for name, field in data.items() if name != "checksum"}
    return json.dumps({"checksum": manifest.checksum_of(data), **data}, indent=1) + "\n"


# Of binary files.

NUMBERS = [0, 1, 2, 5, 255, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)]


def _packed(layout: struct.Struct, values: tuple[Any, ...]) -> bytes | None:
    """Return the bytes of values, None if a number does not fit its field."""
    try:
        return layout.pack(*values)
    except struct.error:
        return None


def _payloads(payload: bytes) -> Iterator[bytes]:
    """Yield payloads that are not deflated."""
    inflated = zlib.decompress(payload) if payload else b""
    yield from (b"", b"x", b"no zlib at all" * 3, payload[:-1], payload + b"x", payload[1:])
    size = len(inflated)
    for other in (b"", b"\0" * size, b"\xff" * size, inflated[:-1], inflated + b"x", b"\0" * 1_000_000):
        yield zlib.compress(other, 9)


def key_files(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (what, bytes) for every key file with one hostile field; its checksums fit."""
    head = keyfile._HEAD.size
    count, nbytes, first = keyfile._FRAME.unpack_from(data, head)
    at = head + keyfile._FRAME.size
    payload, rest = data[at : at + nbytes], data[at + nbytes + 4 :]

    def frame(fields: tuple[int, int, int], payload: bytes) -> bytes | None:
        packed = _packed(keyfile._FRAME, fields)
        return packed and packed + payload + struct.pack("<I", zlib.crc32(payload, zlib.crc32(packed)))

    for number in NUMBERS:
        versioned = _packed(keyfile._HEAD, (keyfile._MAGIC, number))
        given = [
            *(("version", versioned and versioned + data[head:]), ("keys", frame((number, nbytes, first), payload))),
            *(("bytes", frame((count, number, first), payload)), ("first", frame((count, nbytes, number), payload))),
        ]
        for name, bent in given:
            if bent is not None:
                yield f"{name} = {number}", bent if name == "version" else data[:head] + bent + rest
        if (last := frame((0, 0, number), b"")) is not None:
            yield f"total = {number}", data[: -keyfile._FRAME.size - 4] + last
    for other in _payloads(payload):
        for keys in {count, 1, 0}:
            bent = frame((keys, len(other), first), other)
            assert bent is not None
            yield f"{keys} keys in {other[:20]!r}", data[:head] + bent + rest
    yield from (("nothing", b""), ("a head", data[:head]), ("more", data + b"x"), ("text", b"[" * 100_000))


def segments(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (what, bytes) for every segment of a log with one hostile field of its first entry; checksums fit."""
    layout, start = segment_files.ENTRY, data.index(segment_files.MARK)
    fields = layout.unpack_from(data, start)
    name_bytes, nbytes = fields[2], fields[4]
    body = start + layout.size
    name, payload = data[body : body + name_bytes], data[body + name_bytes : body + name_bytes + nbytes]
    rest = data[body + name_bytes + nbytes + 4 :]

    def entry(fields: tuple[Any, ...], name: bytes, payload: bytes) -> bytes | None:
        packed = _packed(layout, fields)
        whole = packed and packed + name + payload
        return whole and data[:start] + whole + struct.pack("<I", zlib.crc32(whole)) + rest

    for place in range(1, len(fields)):
        for number in NUMBERS:
            if (bent := entry((*fields[:place], number, *fields[place + 1 :]), name, payload)) is not None:
                yield f"field {place} = {number}", bent
    for other in (b"", b"\xff\xfe", b"nobody", b"a\n\x1b", b"items", b"x" * 65_535):
        bent = entry((*fields[:2], len(other), *fields[3:]), other, payload)
        yield f"name {other[:20]!r}", bent or data
    for other in (b"", b"x", payload[:-1], payload + b"x", b"\xff" * nbytes, b"\0" * nbytes):
        for kind in _KINDS:
            bent = entry((fields[0], kind, *fields[2:4], len(other), *fields[5:]), name, other)
            yield f"kind {kind}, payload {other[:20]!r}", bent or data
    yield from _continued(data, start)
    yield from (("nothing", b""), ("a head", data[:start]), ("more", data + b"x" * 100), ("text", b"[" * 100_000))


def _continued(data: bytes, start: int) -> Iterator[tuple[str, bytes]]:
    """Yield a segment with an entry, before the first or after the last, that says that another segment follows."""
    first = last = segment_files._entry_at(data, start)
    at = start
    while (entry := segment_files._entry_at(data, at)) is not None:
        last, at = entry, segment_files._end(data, at)
    assert first is not None
    assert last is not None
    payloads = [packed for number in NUMBERS if (packed := _packed(segment_files.NUMBER, (number,)))]
    payloads += [b"", b"x", b"x" * 7, b"x" * 9, b"\0" * 1_000_000]
    for where, number in ((at, last.number + 1), (at, last.number), (start, first.number), (at, 2**64 - 1)):
        for payload in payloads:
            for name in (b"", b"users", b"\xff"):
                head = (segment_files.MARK, segment_files.CONTINUED, len(name), len(name), len(payload))
                whole = segment_files.ENTRY.pack(*head, number, 0, -len(name)) + name + payload
                entry_bytes = whole + struct.pack("<I", zlib.crc32(whole))
                bent = data[:where] + entry_bytes + data[where:]
                yield f"continued at {where} as {number} by {name!r}, payload {payload[:20]!r}", bent


TEXTS = [
    *(b"", b"\n", b"x", b"\0", b"\xff\xfe\n", b"9" * 100_000, b"9" * 5000 + b"\n", b"-1\n", b"0\n", b"000000\n"),
    *(b"000005", b"000099\n", b"../../etc\n", b"a\nb\n", b"\x1b[31m\n", b".\n", b"5\n", "\u0665\n".encode()),
    *(b"MANIFEST-\n", b"MANIFEST-000099\n", b"MANIFEST-" + b"9" * 300 + b"\n", b"OPTIONS-000005\n", b"CURRENT\n"),
    *(b"null", b"[]", b"{}", b'{"raw_mode":false,"prefix_extractors":{}}', b'{"raw_mode":1,"prefix_extractors":{}}'),
    *(b'{"raw_mode":true}', b'{"raw_mode":true,"prefix_extractors":[]}', b'{"raw_mode":"x","prefix_extractors":{}}'),
    *(b'{"raw_mode":true,"prefix_extractors":{"users":{"x":1}}}', b"[" * 3000, b"\0" * 4096, b"[DBOptions]\n  x=\n"),
]
