"""Push and pull of checkpoints to and from a URL that fsspec supports; each file is stored there once
(kvemb.offline.remote).

One process at a time may write to a URL. After an interruption, the next transfer skips the files already transferred.
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
from kvemb.offline.remote import FILES, RemoteCheckpoints

# Files transferred concurrently: for most files the network's latency is longer than the transfer.
JOBS = 8


@dataclass(frozen=True)
class Transfer:
    """Result of a push. number: of the checkpoint. files, nbytes: sent. shared: files that were at the URL already."""

    number: int
    files: int
    nbytes: int
    shared: int


class Remote(RemoteCheckpoints):
    """Checkpoints at a URL, with push, pull and prune. See RemoteCheckpoints."""

    def push(
        self,
        checkpoint: Checkpoint,
        number: int,
        *,
        verify: bool = False,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a checkpoint to the URL under its number: first the files that the URL lacks, then its manifest.

        A remote file of the right size was hashed when it was sent, and is kept; one of another size is replaced.
        verify: remote files are read too, and replaced if damaged. Raises FileExistsError if another checkpoint has
        that number, TransferError; Corruption if a local file does not match the manifest.
        """
        self._check_destination()
        files = {entry.sha256: (checkpoint.path / name, entry) for name, entry in checkpoint.files.items()}
        complete = self._has(checkpoint, number)
        with self._translated("list"):
            sizes = {path.rpartition("/")[2]: known["size"] for path, known in self._found(FILES).items()}
        present = [(path, entry) for path, entry in files.values() if sizes.get(entry.sha256) == entry.bytes]
        missing = {entry.sha256 for _, entry in files.values()} - {entry.sha256 for _, entry in present}
        total = sum(files[sha256][1].bytes for sha256 in missing) + verify * sum(entry.bytes for _, entry in present)
        meter = Meter(total, progress)

        def check(path: Path, entry: FileEntry) -> None:
            if streams.matches(self._files, self._file_at(entry.sha256), entry):
                meter(entry.bytes)
            else:
                missing.add(entry.sha256)

        def send(path: Path, entry: FileEntry) -> None:
            target = self._file_at(entry.sha256)
            if entry.sha256 in sizes:
                self._files.rm_file(target)  # never write through a file that may have other links
            self._make_folder_of(target)
            streams.send(path, entry, self._files, target)
            meter(entry.bytes)

        if verify:
            with self._translated("read"):
                _all(check, present, jobs)
        sent = [files[sha256] for sha256 in sorted(missing)]
        with self._translated("write to", resumable=True):
            _all(send, sent, jobs)
            if not complete:
                self._publish(number, (checkpoint.path / manifest.NAME).read_bytes())
        return Transfer(number, len(sent), sum(entry.bytes for _, entry in sent), len(files) - len(sent))

    def _check_destination(self) -> None:
        """Raise FileExistsError or ValueError if the URL is a local store or checkpoint, or inside a store."""
        if "file" in self._files.protocol:
            root = Path(self._root)
            layout.check_outside_stores(root, "copy")
            if kind := "store" if layout.is_store(root) else "checkpoint" if layout.is_checkpoint(root) else None:
                raise FileExistsError(f"{root} is a {kind}; push to another directory")

    def _has(self, checkpoint: Checkpoint, number: int) -> bool:
        """Whether the URL has the checkpoint; a damaged manifest counts as missing. Raises FileExistsError."""
        if number not in self.numbers():
            return False
        try:
            _, remote = self._read(number)
        except Corruption:
            return False
        if remote != inside(checkpoint):
            raise FileExistsError(
                f"{self._url} has another checkpoint {series_name(number)}, with the id {remote.id}; push elsewhere"
            )
        return True

    def _publish(self, number: int, text: bytes) -> None:
        """Write a manifest atomically: object stores show a file once it is complete, elsewhere it is renamed."""
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
        """Copy a checkpoint from the URL to a new local directory.

        have: local checkpoints, whose files are shared by hard link. scratch: a directory for files received and
        verified; if this fails, it is kept for the next pull. Raises CheckpointNotFound, FileExistsError,
        ColdStoreError, TransferError; Corruption naming a file that is not what was pushed.
        """
        text, described = self._read(number)
        candidates = ((other.path / name, entry) for other in have for name, entry in other.files.items())
        local = {entry.sha256: path for path, entry in candidates if _has_size(path, entry)}
        entries = {entry.sha256: entry for entry in described.files.values() if entry.sha256 not in local}
        if not scratch.is_dir() or scratch.is_symlink():
            fresh_files.remove(scratch)
        fresh_files.make_directory(scratch)
        missing = [(scratch / sha256, entry) for sha256, entry in entries.items()]
        meter = Meter(sum(entry.bytes for _, entry in missing), progress)

        def receive(path: Path, entry: FileEntry) -> None:
            source = self._file_at(entry.sha256)
            # An earlier pull may have received it.
            if not (_has_size(path, entry) and not path.is_symlink() and measure(path) == entry):
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
            _all(receive, missing, jobs)
        with atomic_directory(target) as folder:
            for name, entry in described.files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                fresh_files.link_or_copy(local.get(entry.sha256, scratch / entry.sha256), folder / name)
            fresh_files.write_new(folder / manifest.NAME, text.encode())
        fresh_files.remove(scratch)

    def prune(self, keep: int) -> list[int]:
        """Delete all but the newest `keep` checkpoints, then unreferenced files; returns the numbers deleted.

        REQUIRES: no push to the URL at the same time. Raises TransferError.
        """
        numbers = self.numbers()
        deleted, kept = numbers[:-keep], numbers[-keep:]
        needed = {entry.sha256 for number in kept for entry in self._read(number)[1].files.values()}
        with self._translated("delete from"):
            for number in deleted:
                self._files.rm_file(self._manifest_at(number))
            for path in self._found(FILES):
                if path.rpartition("/")[2] not in needed:
                    self._files.rm_file(path)
        return deleted


def _has_size(path: Path, entry: FileEntry) -> bool:
    """Whether a local file has the expected size."""
    try:
        return path.stat().st_size == entry.bytes
    except OSError:
        return False


def _all(move: Callable[[Path, FileEntry], None], files: list[tuple[Path, FileEntry]], jobs: int) -> None:
    """Call move for each file, on `jobs` threads. Raises the first error; no file is begun after it."""
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
