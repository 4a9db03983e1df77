"""Splits values into pieces of bytes that Ray sends inside a call or an answer, and joins them again.

Ray sends values of up to 100 kB inside a call or an answer, and larger ones through its shared memory, which takes
longer. The values of one call may have 10 MB together. A value's arrays are sent one after the other, each aligned to
ALIGN bytes, split into pieces of equal length; the first piece describes the rest.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

PIECE_BYTES, MAX_BYTES = 90_000, 8_000_000
ALIGN = 16


def pieces_of(nbytes: int) -> int:
    """Return the number of pieces in which arrays of so many bytes are sent; 0: they are not split."""
    return -(-nbytes // PIECE_BYTES) if PIECE_BYTES < nbytes <= MAX_BYTES else 0


class SplitValue:
    """A value to split. nbytes: of its arrays. The value must not change before pieces() has returned."""

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._described = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        self._raw = [buffer.raw() for buffer in buffers]
        self.nbytes = sum(len(raw) + -len(raw) % ALIGN for raw in self._raw)

    def pieces(self, count: int) -> tuple[bytes, ...]:
        """Return a description, then `count` pieces of bytes; joined() is the inverse."""
        size = -(-self.nbytes // count) if count else 0
        pieces = list(self._cut(size))
        described = pickle.dumps((self._described, [len(raw) for raw in self._raw]))
        return (described, *pieces, *[b""] * (count - len(pieces)))

    def _cut(self, size: int) -> Iterator[bytes]:
        parts: list[memoryview] = []
        room = size
        for raw in self._raw:
            for view in (raw, memoryview(bytes(-len(raw) % ALIGN))):
                left = view
                while len(left) > room:
                    yield b"".join([*parts, left[:room]])
                    parts, left, room = [], left[room:], size
                parts.append(left)
                room -= len(left)
        if parts:
            yield b"".join(parts)


def joined(pieces: tuple[bytes, ...] | list[bytes]) -> Any:
    """Return the value that a SplitValue cut; its arrays are writable."""
    described, sizes = pickle.loads(pieces[0])
    whole, at, buffers = memoryview(bytearray().join(pieces[1:])), 0, []
    for size in sizes:
        buffers.append(whole[at : at + size])
        at += size + -size % ALIGN
    return pickle.loads(described, buffers=buffers)
