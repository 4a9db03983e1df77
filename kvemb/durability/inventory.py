"""The inventory of a checkpoint: its files with sizes and checksums, taken when it is written and checked later.

Table files never change once written, so a file that a checkpoint shares with the previous one (a hard link) keeps its
checksum, and the cost of an inventory is proportional to the new files.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from kvemb.checks import open_file_limit
from kvemb.durability import manifest
from kvemb.durability.manifest import FileEntry, Manifest
from kvemb.errors import ColdStoreError, Corruption
from kvemb.threads.pool import Threads

# Files that are not hashed when a checkpoint is opened: their blocks and frames have checksums, checked when read.
_CHECKED_ON_READ = (".sst", ".blob", ".keys", ".counts")
# At most this many bytes are read to find out which file is damaged, which takes some seconds.
NAMING_BYTES = 8 << 30
# Files that are synced at the same time.
SYNCING = 8


class Inventory:
    """The inventory of a directory that is being filled; a context manager.

    before, known: a directory with a known inventory, and that inventory. The threads wait for the disk together, so
    that the filesystem commits many files at once; none holds the GIL. Each gets its files as one piece of work: there
    may be thousands, and futures are many objects for the garbage collector.
    begun: the files measured so far, by relative path, as begin() gave them to the threads.
    """

    def __init__(self, directory: Path, before: Path | None, known: dict[str, FileEntry]) -> None:
        self._root, self._before, self._known = f"{directory}/", before, known
        self._pool = Threads(SYNCING, thread_name_prefix="kvemb-hash")
        self.begun: list[Future[dict[str, FileEntry]]] = []
        self._shared: dict[str, FileEntry | None] = {}  # None: it is another file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, folder: str, suffix: str = "") -> None:
        """Start to sync and hash the files of a folder with that suffix, which must not change any more."""
        self._begin([name for name in self._names(folder) if name.endswith(suffix) and not self._is_shared(name)])

    def _begin(self, names: list[str]) -> None:
        parts = (names[at::SYNCING] for at in range(SYNCING))
        self.begun += [self._pool.submit(_measured, self._root, part) for part in parts if part]

    def take(self, *, same_names: bool = False) -> dict[str, FileEntry]:
        """Sync every file below the directory, except manifest.json, and return the files by relative path.

        Files of begin() that are gone do not count. same_names: the directory is a copy of `before`, so files that
        never change must have the checksums in `known`. Raises OSError; Corruption naming a file of `before`.
        """
        names = self._names()
        measured = self._results()
        self._begin([name for name in names if name not in measured and not self._is_shared(name)])
        measured |= self._results()
        entries: dict[str, FileEntry] = {}
        for name in names:
            entry = entries[name] = self._shared.get(name) or measured.get(name) or measure(self._root + name)
            if same_names and is_checked_on_read(name) and entry != self._known.get(name):
                where = f"{self._before}/{name}" if self._before is not None else self._root + name
                raise Corruption(f"{where} is damaged: its checksum differs from the manifest")
        return entries

    def _results(self) -> dict[str, FileEntry]:
        return {name: entry for each in self.begun for name, entry in each.result().items()}

    def _names(self, folder: str = "") -> list[str]:
        names = (name for name in _names(self._root, folder) if name != manifest.NAME)
        return sorted(names, key=lambda name: name.split("/"))

    def _is_shared(self, name: str) -> bool:
        """Whether a file is one of `before`, so that its entry is known."""
        if name not in self._shared and name in self._known and self._before is not None:
            shared = _same_file(f"{self._before}/{name}", self._root + name)
            self._shared[name] = self._known[name] if shared else None
        return self._shared.get(name) is not None


def _names(root: str, below: str) -> Iterator[str]:
    """Yield the path below root, which ends in "/", of each file in a folder. pathlib takes three times as long."""
    for folder, _, files in os.walk(root + below):
        for file in files:
            yield os.path.join(folder, file)[len(root) :]


def is_checked_on_read(name: str) -> bool:
    """Whether a file of a checkpoint never changes and is not hashed when the checkpoint is opened.

    An attached file is hashed when a caller gets it (kvemb.durability.attachments).
    """
    return name.endswith(_CHECKED_ON_READ) or name.startswith("files/")


def _measured(root: str, names: list[str]) -> dict[str, FileEntry]:
    """Measure files below root; those that are gone are left out."""
    found: dict[str, FileEntry] = {}
    for name in names:
        with suppress(FileNotFoundError):
            found[name] = measure(root + name)
    return found


def measure(path: Path | str) -> FileEntry:
    """Sync a file to disk, and return its size and checksum."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(file.tell(), digest)


def damages(
    directory: Path, described: Manifest, *, deep: bool, progress: Callable[[int], None] | None = None
) -> Iterator[str]:
    """Yield one line for each file of a checkpoint that is missing, truncated or changed.

    deep: hash every file; otherwise check sizes, and hash only the small files whose damage RocksDB might not notice.
    progress(bytes): called for each file.
    """
    for name, entry in sorted(described.files.items()):
        path = directory / name
        if progress is not None:
            progress(entry.bytes)
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                yield f"{path} is damaged: it has {size:,} bytes and should have {entry.bytes:,}"
            elif deep or not is_checked_on_read(name):
                with open(path, "rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                        yield f"{path} is damaged: its checksum differs from the manifest"
        except (FileNotFoundError, NotADirectoryError):
            link = f": it is a symbolic link to {os.readlink(path)}, which is missing" if path.is_symlink() else ""
            yield f"{path} is missing{link}"
        except OSError as error:
            check_is_of_file(error, path)
            yield f"{path} cannot be read: {error}"


def check_is_of_file(error: OSError, path: Path) -> None:
    """Raise ColdStoreError if reading the file failed for want of file descriptors or memory: it is not damaged."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise ColdStoreError(f"cannot read {path}: {error}{open_file_limit.advice(str(error))}") from error


def check(directory: Path, described: Manifest) -> None:
    """Raise Corruption naming the first damaged file. Checks sizes, and hashes small files, as damages()."""
    for damage in damages(directory, described, deep=False):
        raise Corruption(f"{damage}; run kvemb verify --deep, and restore from another checkpoint")


@contextmanager
def naming_damaged_file(directory: Path, described: Manifest) -> Iterator[None]:
    """Add the damaged table file's name to a Corruption of RocksDB that does not name it."""
    try:
        yield
    except Corruption as error:
        files = [name for name in described.files if name.endswith(".sst")]
        small = sum(described.files[name].bytes for name in files) <= NAMING_BYTES
        if small and not any(Path(name).name in str(error) for name in files):
            for damage in damages(directory, described, deep=True):
                raise Corruption(f"{damage}: {error}") from error
        raise


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
