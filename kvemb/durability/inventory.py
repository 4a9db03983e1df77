"""The files of a checkpoint with their sizes and checksums: taken when it is written, held against it ever after.

Table files never change once written, so a checkpoint that shares one with the checkpoint before it (a hard link)
takes over its checksum, and what an inventory costs follows what is new.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kvemb.durability import manifest
from kvemb.durability.manifest import FileEntry, Manifest
from kvemb.errors import Corruption

# Files that opening a checkpoint does not read through: their blocks and frames carry checksums, checked when they are
# read.
CHECKED_ON_READ = (".sst", ".blob", ".keys")
# What is read at most to find out which file is damaged: some seconds.
NAMING_BYTES = 8 << 30


def take(
    directory: Path,
    before: Path | None = None,
    known: dict[str, FileEntry] | None = None,
    *,
    same_names: bool = False,
) -> dict[str, FileEntry]:
    """Return every file below directory by its relative path, synced to disk; manifest.json is left out.

    before, known: a directory whose files were listed already, and that list. same_names: this is a copy of it, and
    files that never change must be as they were listed. Raises OSError; Corruption naming a file of `before`.
    """
    entries: dict[str, FileEntry] = {}
    new: dict[str, Path] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir() or name == manifest.NAME:
            continue
        earlier = (known or {}).get(name)
        if earlier is not None and before is not None and _same_file(before / name, path):
            entries[name] = earlier
        else:
            new[name] = path
    # One waits for the disk while the other computes; neither needs the GIL.
    with ThreadPoolExecutor(2, thread_name_prefix="kvemb-hash") as pool:
        entries |= zip(new, pool.map(measure, new.values()), strict=True)
    for name, path in new.items():
        if same_names and path.suffix in CHECKED_ON_READ and entries[name] != (known or {}).get(name):
            raise Corruption(f"{(before or directory) / name} is damaged: its checksum is not that of the manifest")
    return entries


def measure(path: Path) -> FileEntry:
    """Return a file's size and checksum, once it is on disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(file.tell(), digest)


def damages(
    directory: Path, described: Manifest, *, deep: bool, progress: Callable[[int], None] | None = None
) -> Iterator[str]:
    """Yield what is wrong with the files of a checkpoint, a line for each: missing, cut, changed.

    deep: read every file; else only sizes, and the small files whose damage RocksDB might not notice. progress(bytes):
    called after each file.
    """
    for name, entry in sorted(described.files.items()):
        path = directory / name
        if progress is not None:
            progress(entry.bytes)
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                yield f"{path} is damaged: it has {size:,} bytes and should have {entry.bytes:,}"
            elif deep or path.suffix not in CHECKED_ON_READ:
                with open(path, "rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                        yield f"{path} is damaged: its checksum is not that of the manifest"
        except (FileNotFoundError, NotADirectoryError):
            led = f": it is a symbolic link to {os.readlink(path)}, which is not there" if path.is_symlink() else ""
            yield f"{path} is missing{led}"
        except OSError as error:
            yield f"{path} cannot be read: {error}"


def check(directory: Path, described: Manifest) -> None:
    """Raise Corruption naming the first damaged file; costs a look at each file, not its reading."""
    for damage in damages(directory, described, deep=False):
        raise Corruption(f"{damage}; run kvemb verify --deep, and restore from another checkpoint")


@contextmanager
def naming(directory: Path, described: Manifest) -> Iterator[None]:
    """Make a Corruption that RocksDB finds in a checkpoint name the table file, where RocksDB itself does not."""
    try:
        yield
    except Corruption as error:
        files = [name for name in described.files if name.endswith(".sst")]
        small = sum(described.files[name].bytes for name in files) <= NAMING_BYTES
        if small and not any(Path(name).name in str(error) for name in files):
            for damage in damages(directory, described, deep=True):
                raise Corruption(f"{damage}: {error}") from error
        raise


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
