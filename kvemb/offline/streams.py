"""Copies files to and from an fsspec filesystem in pieces, and hashes them meanwhile.

If send() is interrupted or fails, the file at the destination never has its full size: the last piece is sent only if
the checksum of the whole file is right. receive() and matches() read at most one byte beyond the expected size. Not
thread-safe for one file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from kvemb import fresh_files
from kvemb.durability.inventory import check_is_of_file
from kvemb.durability.layout import as_cold_store_error
from kvemb.durability.manifest import FileEntry
from kvemb.errors import Corruption
from kvemb.threads.interrupts import result_of
from kvemb.threads.pool import Threads

File = TypeVar("File")
PIECE_BYTES = 1 << 20
# Bytes of a file in memory while it is copied. Object stores transfer parts of at least 5 MiB.
PART_BYTES = 8 << 20


def send(path: Path, entry: FileEntry, files: Any, target: str) -> None:
    """Copy a local file to a new remote one.

    Raises Corruption, naming it, if it does not match its entry; ColdStoreError for want of file descriptors.
    """
    pending = b""

    def send_previous(piece: bytes) -> None:
        nonlocal pending
        remote.write(pending)
        pending = piece

    try:
        local = open(path, "rb")  # noqa: SIM115 -- closed below; a failure here is of the local file
    except OSError as error:
        check_is_of_file(error, path)
        raise Corruption(f"{path} cannot be read: {error}; run kvemb verify --deep") from error
    with local, files.open(target, "wb", block_size=PART_BYTES) as remote:
        sound = _read(local, entry, send_previous)
        if sound:
            remote.write(pending)
            _sync(remote)
    if not sound:
        with suppress(Exception):  # its size shows that it is incomplete
            files.rm_file(target)
        raise Corruption(
            f"{path} is damaged, so it was not sent: the manifest has {entry.bytes:,} bytes with another checksum; run "
            "kvemb verify --deep"
        )


def receive(files: Any, source: str, entry: FileEntry, path: Path) -> bool:
    """Copy a remote file to a new local one, durably. Returns whether it matches its entry; if not, it is deleted.

    Raises FileNotFoundError, and what the filesystem raises; ColdStoreError for the local file.
    """
    writing = f"write to {path}"
    with _opened(files, source, entry) as remote:
        with as_cold_store_error(writing):
            fresh_files.remove(path)
            local = open(path, "xb")  # noqa: SIM115 -- closed below; a failure here is of the local file

        def write(piece: Any) -> None:
            with as_cold_store_error(writing):
                local.write(piece)

        try:
            sound = _read(remote, entry, write)
        finally:
            with as_cold_store_error(writing), local:
                local.flush()
                os.fsync(local.fileno())
    if not sound:
        path.unlink()
    return sound


def matches(files: Any, path: str, entry: FileEntry) -> bool:
    """Whether a remote file matches its entry; reads the whole file."""
    with _opened(files, path, entry) as remote:
        return _read(remote, entry, len)


def read(files: Any, path: str, most: int) -> bytes:
    """Read at most `most` bytes of a small remote file, with one request: another process may replace it meanwhile.

    Raises FileNotFoundError, and what the filesystem raises.
    """
    try:
        return bytes(files.cat_file(path, end=most)[:most])
    except OSError as error:  # object stores refuse to read a part of an empty file
        if isinstance(error, FileNotFoundError) or files.size(path):
            raise
        return b""


def write(files: Any, target: str, data: bytes) -> None:
    """Write a small remote file."""
    with files.open(target, "wb") as remote:
        remote.write(data)
        _sync(remote)


def move_all(move: Callable[[File], None], files: Iterable[File], jobs: int) -> None:
    """Call move for each file, on `jobs` threads. Raises the first error, after which no further file is begun."""
    failed = threading.Event()

    def unless_failed(file: File) -> None:
        if not failed.is_set():
            try:
                move(file)
            except BaseException:
                failed.set()
                raise

    with Threads(jobs, thread_name_prefix="kvemb-transfer") as pool:
        try:
            for moved in [pool.submit(unless_failed, file) for file in files]:
                result_of(moved)
        finally:
            failed.set()


def _opened(files: Any, path: str, entry: FileEntry) -> Any:
    return files.open(path, "rb", block_size=min(PART_BYTES, entry.bytes + 1))


def _read(file: IO[bytes], entry: FileEntry, take: Callable[[bytes], object]) -> bool:
    """Pass a file's pieces to `take`, up to its expected size; returns whether the file matches its entry."""
    digest, left = hashlib.sha256(), entry.bytes
    while left and (piece := file.read(min(PIECE_BYTES, left))):
        digest.update(piece)
        take(piece)
        left -= len(piece)
    return left == 0 and not file.read(1) and digest.hexdigest() == entry.sha256


def _sync(file: Any) -> None:
    """Sync a file to disk if it is on a local filesystem."""
    try:
        handle = file.fileno()
    except (OSError, AttributeError):
        return
    file.flush()
    os.fsync(handle)
