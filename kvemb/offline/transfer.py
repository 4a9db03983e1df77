"""Checkpoints elsewhere, anywhere that fsspec reaches, with every file there once (FORMAT.md, "Remote").

    URL/checkpoints/00000042.json    a checkpoint's manifest.json, put there last: with it the checkpoint is there
    URL/files/3f/3fa9...             a file by the sha256 of its content, shared by the checkpoints that name it

One process at a time writes to a URL. What an interrupted transfer has moved, the next one need not.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvemb.durability import layout, manifest
from kvemb.durability.checkpoint import Checkpoint, atomic_directory
from kvemb.durability.inventory import measure
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import FileEntry, Manifest
from kvemb.errors import BackendUnavailable, CheckpointNotFound, Corruption, KvembError, TransferError
from kvemb.interrupts import result_of
from kvemb.meter import Meter, Progress

CHECKPOINTS, FILES = "checkpoints", "files"
# Files that travel at once: what a network takes to answer is longer than what they take.
JOBS = 8


@dataclass(frozen=True)
class Transfer:
    """What a push moved. number: of the checkpoint. shared: files that were there already."""

    number: int
    files: int
    nbytes: int
    shared: int


class Remote:
    """Checkpoints at a URL. options: for fsspec's filesystem: credentials, an endpoint. Raises BackendUnavailable."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url = url.rstrip("/")
        try:
            import fsspec
        except ImportError as error:
            raise BackendUnavailable(
                f"{url} cannot be reached: {error}; install: pip install 'kvemb[remote]'"
            ) from error
        try:
            with self._translated("reach"):
                # An instance of its own: the transaction below is the instance's.
                self._files, self._root = fsspec.core.url_to_fs(self._url, skip_instance_cache=True, **(options or {}))
        except ImportError as error:  # fsspec says which package knows this protocol
            raise BackendUnavailable(f"{url} cannot be reached: {error}") from error

    @contextmanager
    def _translated(self, what: str, *, resumable: bool = False) -> Iterator[None]:
        """Turn what filesystems raise, which is anything, into TransferError. resumable: files move meanwhile."""
        try:
            yield
        except (KvembError, ImportError):
            raise
        except Exception as error:
            advice = "; what was moved stays: call again to go on" if resumable else ""
            raise TransferError(f"cannot {what} {self._url}: {type(error).__name__}: {error}{advice}") from error

    def numbers(self) -> list[int]:
        """The numbers of the checkpoints that are there, ascending. Raises TransferError."""
        with self._translated("list"):
            self._files.invalidate_cache()
            found = [Path(path) for path in self._found(CHECKPOINTS)]
        return sorted(int(path.stem) for path in found if path.suffix == ".json" and path.stem.isdecimal())

    def id_of(self, number: int) -> str:
        """The id of a checkpoint that is there. Raises CheckpointNotFound, Corruption, TransferError."""
        return self._read(number)[1].id

    def _found(self, folder: str) -> dict[str, Any]:
        """The files of a folder with what is known of them; none where there is no folder."""
        try:
            found: dict[str, Any] = self._files.find(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return {}
        return found

    def _manifest_at(self, number: int) -> str:
        return f"{self._root}/{CHECKPOINTS}/{series_name(number)}.json"

    def _file_at(self, sha256: str) -> str:
        return f"{self._root}/{FILES}/{sha256[:2]}/{sha256}"

    def _read(self, number: int) -> tuple[str, Manifest]:
        """Return a checkpoint's manifest, as text and read. Raises CheckpointNotFound, Corruption, TransferError."""
        where = f"{self._url}/{CHECKPOINTS}/{series_name(number)}.json"
        with self._translated("read"):
            try:
                text = self._files.cat_file(self._manifest_at(number)).decode()
            except FileNotFoundError as error:
                raise CheckpointNotFound(f"there is no checkpoint {series_name(number)} at {self._url}") from error
            except UnicodeDecodeError as error:
                raise Corruption(f"{where} is damaged: {error!r}; push it again") from error
        return text, manifest.parse(text, where)

    def push(
        self, checkpoint: Checkpoint, number: int, *, jobs: int = JOBS, progress: Progress | None = None
    ) -> Transfer:
        """Put a checkpoint there under its number: first the files that are not there, then its manifest.

        Raises FileExistsError where another checkpoint has that number, TransferError; Corruption where a file is not
        as the manifest says.
        """
        files = {entry.sha256: (checkpoint.path / name, entry) for name, entry in checkpoint.files.items()}
        if number in self.numbers():
            _, there = self._read(number)
            if there.id != checkpoint.id:
                raise FileExistsError(
                    f"{self._url} has another checkpoint {series_name(number)}, with the id {there.id}; push elsewhere"
                )
            return Transfer(number, 0, 0, len(files))
        with self._translated("list"):
            sizes = {Path(path).name: known["size"] for path, known in self._found(FILES).items()}
        # A file of another size is what an interrupted push left.
        lacking = [(path, entry) for path, entry in files.values() if sizes.get(entry.sha256) != entry.bytes]
        meter = Meter(sum(entry.bytes for _, entry in lacking), progress)

        def put(path: Path, entry: FileEntry) -> None:
            if path.stat().st_size != entry.bytes:
                raise Corruption(f"{path} is damaged: it has not {entry.bytes:,} bytes; run kvemb verify --deep")
            target = self._file_at(entry.sha256)
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(path), target)
            meter(entry.bytes)

        with self._translated("write to", resumable=True):
            _all(put, lacking, jobs)
            self._files.makedirs(f"{self._root}/{CHECKPOINTS}", exist_ok=True)
            text = (checkpoint.path / manifest.NAME).read_bytes()
            with self._files.transaction, self._files.open(self._manifest_at(number), "wb") as file:
                file.write(text)
        return Transfer(number, len(lacking), sum(entry.bytes for _, entry in lacking), len(files) - len(lacking))

    def pull(
        self,
        number: int,
        target: Path,
        have: Iterable[Checkpoint],
        scratch: Path,
        *,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> None:
        """Make a checkpoint that is there a new directory here.

        have: checkpoints here, whose files are shared by hard link. scratch: a folder for files that came and were
        verified; it is kept when this fails, and the next pull goes on from it. Raises CheckpointNotFound,
        FileExistsError, ColdStoreError, TransferError; Corruption naming a file that is not what was pushed.
        """
        text, described = self._read(number)
        here = {entry.sha256: other.path / name for other in have for name, entry in other.files.items()}
        entries = {entry.sha256: entry for entry in described.files.values() if entry.sha256 not in here}
        layout.make_directory(scratch)
        coming = [(scratch / sha256, entry) for sha256, entry in entries.items() if not (scratch / sha256).exists()]
        meter = Meter(sum(entry.bytes for _, entry in coming), progress)

        def get(path: Path, entry: FileEntry) -> None:
            part = path.with_suffix(".part")
            source = self._file_at(entry.sha256)
            try:
                self._files.get_file(source, str(part))
            except FileNotFoundError as error:
                raise Corruption(f"{source} is missing at {self._url}; push the checkpoint again") from error
            if measure(part) != entry:
                part.unlink()
                raise Corruption(
                    f"{source} at {self._url} is damaged: it is not what was pushed; delete it, push again"
                )
            os.rename(part, path)
            meter(entry.bytes)

        with self._translated("read", resumable=True):
            _all(get, coming, jobs)
        with atomic_directory(target) as folder:
            for name, entry in described.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                layout.link_or_copy(here.get(entry.sha256, scratch / entry.sha256), folder / name)
            with open(folder / manifest.NAME, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        shutil.rmtree(scratch)

    def prune(self, keep: int) -> list[int]:
        """Drop all but the newest `keep` checkpoints, then every file that none of those names; returns the dropped.

        REQUIRES: nobody pushes there meanwhile. Raises TransferError.
        """
        numbers = self.numbers()
        dropped, kept = numbers[:-keep], numbers[-keep:]
        needed = {entry.sha256 for number in kept for entry in self._read(number)[1].files.values()}
        with self._translated("delete from"):
            for number in dropped:
                self._files.rm_file(self._manifest_at(number))
            for path in self._found(FILES):
                if Path(path).name not in needed:
                    self._files.rm_file(path)
        return dropped


def _all(move: Callable[[Path, FileEntry], None], files: list[tuple[Path, FileEntry]], jobs: int) -> None:
    """Move files, `jobs` at once. Raises the first error; none is begun after it."""
    failed = threading.Event()

    def unless_failed(path: Path, entry: FileEntry) -> None:
        if not failed.is_set():
            try:
                move(path, entry)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(jobs, thread_name_prefix="kvemb-transfer") as pool:
        try:
            for moved in [pool.submit(unless_failed, *file) for file in files]:
                result_of(moved)
        finally:
            failed.set()
