"""Files that travel to and from another filesystem piece by piece, each piece hashed on its way.

A file that send() left half-way, or refused, never has its size there: the last piece goes only after the checksum of
all has been found right. receive() and holds() read no more than a file should have, and a byte. No thread contract.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from kvemb.durability import fresh_files
from kvemb.durability.manifest import FileEntry
from kvemb.errors import Corruption

PIECE_BYTES = 1 << 20
# Of a file that travels, what is in memory: object stores take and give parts. They ask for 5 MiB at least.
PART_BYTES = 8 << 20


def send(path: Path, entry: FileEntry, files: Any, target: str) -> None:
    """Copy a file to a new one of a filesystem. Raises Corruption, naming it, where it is not as its entry says."""
    waiting = b""

    def take(piece: bytes) -> None:
        nonlocal waiting
        there.write(waiting)
        waiting = piece

    try:
        here = open(path, "rb")  # noqa: SIM115 -- closed below; what fails here is this machine's
    except OSError as error:
        raise Corruption(f"{path} cannot be read: {error}; run kvemb verify --deep") from error
    with here, files.open(target, "wb", block_size=PART_BYTES) as there:
        sound = _read(here, entry, take)
        if sound:
            there.write(waiting)
            _sync(there)
    if not sound:
        with suppress(Exception):  # a part of it, which nobody takes for the whole
            files.rm_file(target)
        raise Corruption(
            f"{path} is damaged: it is not the {entry.bytes:,} bytes with the checksum of the manifest; it was not "
            "sent: run kvemb verify --deep"
        )


def receive(files: Any, source: str, entry: FileEntry, path: Path) -> bool:
    """Copy a file of a filesystem to a new one here, on disk when this returns; returns whether it is as its entry
    says, else there is none. Raises FileNotFoundError, and what filesystems raise.
    """
    fresh_files.remove(path)
    with _opened(files, source, entry) as there, open(path, "xb") as here:
        sound = _read(there, entry, here.write)
        here.flush()
        os.fsync(here.fileno())
    if not sound:
        path.unlink()
    return sound


def holds(files: Any, path: str, entry: FileEntry) -> bool:
    """Whether a file of a filesystem is as its entry says; costs the reading of it."""
    with _opened(files, path, entry) as there:
        return _read(there, entry, len)


def read(files: Any, path: str, most: int) -> bytes:
    """Read a small file of a filesystem, as many bytes of it at most."""
    with files.open(path, "rb", block_size=PIECE_BYTES) as there:
        return bytes(there.read(most))


def write(files: Any, target: str, data: bytes) -> None:
    """Write a small file of a filesystem."""
    with files.open(target, "wb") as there:
        there.write(data)
        _sync(there)


def _opened(files: Any, path: str, entry: FileEntry) -> Any:
    return files.open(path, "rb", block_size=min(PART_BYTES, entry.bytes + 1))


def _read(file: IO[bytes], entry: FileEntry, take: Callable[[bytes], object]) -> bool:
    """Give a file's pieces, of its size at most, to take; returns whether it is as its entry says."""
    digest, left = hashlib.sha256(), entry.bytes
    while left and (piece := file.read(min(PIECE_BYTES, left))):
        digest.update(piece)
        take(piece)
        left -= len(piece)
    return left == 0 and not file.read(1) and digest.hexdigest() == entry.sha256


def _sync(file: Any) -> None:
    """Wait for the disk where a file is on one that this machine sees."""
    try:
        handle = file.fileno()
    except (OSError, AttributeError):
        return
    file.flush()
    os.fsync(handle)
