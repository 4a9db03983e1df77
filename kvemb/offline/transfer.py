"""Checkpoints to and from elsewhere, anywhere that fsspec reaches, with every file there once (kvemb.offline.remote).

One process at a time writes to a URL. What an interrupted transfer has moved, the next one need not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvemb.durability import fresh_files, layout, manifest
from kvemb.durability.checkpoint import Checkpoint, atomic_directory
from kvemb.durability.inventory import measure
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import FileEntry
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.interrupts import result_of
from kvemb.meter import Meter, Progress
from kvemb.offline import streams
from kvemb.offline.remote import FILES, RemotePlace

# Files that travel at once: what a network takes to answer is longer than what they take.
JOBS = 8


@dataclass(frozen=True)
class Transfer:
    """What a push moved. number: of the checkpoint. shared: files that were there already, and stayed."""

    number: int
    files: int
    nbytes: int
    shared: int


class Remote(RemotePlace):
    """Checkpoints at a URL, to be put there and taken from there. See RemotePlace."""

    def push(
        self,
        checkpoint: Checkpoint,
        number: int,
        *,
        verify: bool = False,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> Transfer:
        """Put a checkpoint there under its number: first the files that are not there, then its manifest.

        A file that is there with its size was hashed when it was sent, and is taken for right; of another size it is
        replaced. verify: each is read there, and replaced if it changed since. Raises FileExistsError where another
        checkpoint has that number, TransferError; Corruption where a file here is not as the manifest says.
        """
        self._check_place()
        files = {entry.sha256: (checkpoint.path / name, entry) for name, entry in checkpoint.files.items()}
        complete = self._has(checkpoint, number)
        with self._translated("list"):
            sizes = {path.rpartition("/")[2]: known["size"] for path, known in self._found(FILES).items()}
        there = [(path, entry) for path, entry in files.values() if sizes.get(entry.sha256) == entry.bytes]
        wrong = {entry.sha256 for _, entry in files.values()} - {entry.sha256 for _, entry in there}
        moving = sum(files[sha256][1].bytes for sha256 in wrong) + verify * sum(entry.bytes for _, entry in there)
        meter = Meter(moving, progress)

        def look(path: Path, entry: FileEntry) -> None:
            if streams.holds(self._files, self._file_at(entry.sha256), entry):
                meter(entry.bytes)
            else:
                wrong.add(entry.sha256)

        def put(path: Path, entry: FileEntry) -> None:
            target = self._file_at(entry.sha256)
            if entry.sha256 in sizes:
                self._files.rm_file(target)  # it may have links
            self._make_folder_of(target)
            streams.send(path, entry, self._files, target)
            meter(entry.bytes)

        if verify:
            with self._translated("read"):
                _all(look, there, jobs)
        lacking = [files[sha256] for sha256 in sorted(wrong)]
        with self._translated("write to", resumable=True):
            _all(put, lacking, jobs)
            if not complete:
                self._publish(number, (checkpoint.path / manifest.NAME).read_bytes())
        return Transfer(number, len(lacking), sum(entry.bytes for _, entry in lacking), len(files) - len(lacking))

    def _check_place(self) -> None:
        """Raise FileExistsError or ValueError where a copy would go into a store or a checkpoint here."""
        if "file" in self._files.protocol:
            place = Path(self._root)
            layout.check_outside_stores(place, "copy")
            if kind := "store" if layout.is_store(place) else "checkpoint" if layout.is_checkpoint(place) else None:
                raise FileExistsError(f"{place} is a {kind}; push to a directory of its own")

    def _has(self, checkpoint: Checkpoint, number: int) -> bool:
        """Whether a checkpoint is there under its number; a damaged manifest is none. Raises FileExistsError."""
        if number not in self.numbers():
            return False
        try:
            _, there = self._read(number)
        except Corruption:
            return False
        if there != inside(checkpoint):
            raise FileExistsError(
                f"{self._url} has another checkpoint {series_name(number)}, with the id {there.id}; push elsewhere"
            )
        return True

    def _publish(self, number: int, text: bytes) -> None:
        """Put a manifest there, whole: object stores show a file when it is, elsewhere it gets its name then."""
        target = self._manifest_at(number)
        self._make_folder_of(target)
        if self._has_folders:
            part = f"{target}.part"
            if self._files.exists(part):
                self._files.rm_file(part)
            streams.write(self._files, part, text)
            self._files.mv(part, target)
        else:
            streams.write(self._files, target, text)

    def _make_folder_of(self, path: str) -> None:
        if self._has_folders:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

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
        ours = ((other.path / name, entry) for other in have for name, entry in other.files.items())
        here = {entry.sha256: path for path, entry in ours if _is_whole(path, entry)}
        entries = {entry.sha256: entry for entry in described.files.values() if entry.sha256 not in here}
        if not scratch.is_dir() or scratch.is_symlink():
            fresh_files.remove(scratch)
        fresh_files.make_directory(scratch)
        coming = [(scratch / sha256, entry) for sha256, entry in entries.items()]
        meter = Meter(sum(entry.bytes for _, entry in coming), progress)

        def get(path: Path, entry: FileEntry) -> None:
            source = self._file_at(entry.sha256)
            # What an earlier pull brought.
            if not (_is_whole(path, entry) and not path.is_symlink() and measure(path) == entry):
                fresh_files.remove(path)
                part = path.with_suffix(".part")
                try:
                    sound = streams.receive(self._files, source, entry, part)
                except FileNotFoundError as error:
                    raise Corruption(f"{source} is missing at {self._url}; push checkpoint {number} again") from error
                if not sound:
                    raise Corruption(
                        f"{source} at {self._url} is damaged: it is not what was pushed; push checkpoint {number} "
                        "again with verify=True, which replaces it"
                    )
                os.rename(part, path)
            meter(entry.bytes)

        with self._translated("read", resumable=True):
            _all(get, coming, jobs)
        with atomic_directory(target) as folder:
            for name, entry in described.files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                fresh_files.link_or_copy(here.get(entry.sha256, scratch / entry.sha256), folder / name)
            fresh_files.write_new(folder / manifest.NAME, text.encode())
        fresh_files.remove(scratch)

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
                if path.rpartition("/")[2] not in needed:
                    self._files.rm_file(path)
        return dropped


def _is_whole(path: Path, entry: FileEntry) -> bool:
    """Whether a file here has the size that it should have."""
    try:
        return path.stat().st_size == entry.bytes
    except OSError:
        return False


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
