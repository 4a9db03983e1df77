"""Pulls checkpoints from a URL that fsspec supports; those that were pushed as deltas are made whole.

After an interruption, the next pull skips the files already received. kvemb.offline.pushing is the opposite direction.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kvemb import fresh_files
from kvemb.durability import epochs, inventory, layout, manifest
from kvemb.durability.checkpoint import Checkpoint, atomic_directory, complete
from kvemb.durability.inventory import measure
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import FileEntry, Manifest
from kvemb.errors import CheckpointNotFound, Corruption
from kvemb.handle import inside
from kvemb.masking import unsecret
from kvemb.offline import streams
from kvemb.offline.applying import apply
from kvemb.offline.chain import Delta, PushedCheckpoint, is_row_file
from kvemb.offline.delta_file import DeltaFile
from kvemb.offline.pushing import JOBS, Pusher, Transfer
from kvemb.progress import Meter, Progress

__all__ = ["JOBS", "PULLING", "Pulling", "Remote", "Transfer"]


class Pulling(NamedTuple):
    """How files are copied from a URL. jobs: so many at a time. progress(done, total): called with bytes."""

    jobs: int = JOBS
    progress: Progress | None = None


PULLING = Pulling()


class Remote(Pusher):
    """Checkpoints at a URL, with push, prune and pull."""

    def pull(
        self, number: int, target: Path, have: Iterable[Checkpoint], received: Path, how: Pulling = PULLING
    ) -> None:
        """Copy a checkpoint from the URL to a new local directory.

        have: local checkpoints, whose files are shared by hard link; if one is the base, or the result of a delta, only
        later deltas are transferred and applied. received: a directory for received and verified files; if the pull
        fails, it is kept for the next one. Raises CheckpointNotFound, FileExistsError,
        ColdStoreError, TransferError; Corruption naming a file that differs from the pushed one.
        """
        text, pushed = self._read(number)
        described, have = pushed.described, list(have)
        begin = _begin(pushed, have)
        todo = pushed.deltas if begin is None else pushed.deltas[pushed.ids.index(begin.id) :]
        named = {name: entry for name, entry in described.files.items() if begin is None or not is_row_file(name)}
        candidates = ((other.path / name, entry) for other in have for name, entry in other.inventory.items())
        local = {entry.sha256: path for path, entry in candidates if _has_size(path, entry)}
        wanted = [*named.values(), *(delta.file for delta in todo)]
        self._receive(pushed, number, [entry for entry in wanted if entry.sha256 not in local], received, how)
        with atomic_directory(target) as folder:
            if begin is not None:
                layout.unpack(begin.path, folder, [])
            for name, entry in named.items():
                (folder / name).parent.mkdir(exist_ok=True)
                source = local.get(entry.sha256, received / entry.sha256)
                if pushed.base is not None and not inventory.is_checked_on_read(name):
                    shutil.copyfile(source, folder / name)  # RocksDB will open it for writing
                else:
                    fresh_files.link_or_copy(source, folder / name)
            if pushed.base is None:
                fresh_files.write_new(folder / manifest.NAME, text.encode())
            else:
                deltas = [self._opened(pushed, delta, number, received) for delta in todo]
                apply(folder / layout.ROWS, described.variables, [deltas])
                complete(folder, described, None if begin is None else begin.path)
        fresh_files.remove(received)

    def _receive(
        self,
        pushed: PushedCheckpoint,
        number: int,
        entries: Iterable[FileEntry],
        received: Path,
        how: Pulling = PULLING,
    ) -> None:
        """Copy files that a checkpoint needs to a folder, named by checksum, unless an earlier call has done so."""
        if not received.is_dir() or received.is_symlink():
            fresh_files.remove(received)
        fresh_files.make_directory(received)
        missing = {entry.sha256: entry for entry in entries}.values()
        meter = Meter(sum(entry.bytes for entry in missing), how.progress)

        def receive(entry: FileEntry) -> None:
            path, source = received / entry.sha256, self._file_at(entry.sha256)
            # An earlier pull may have received it.
            if not (_has_size(path, entry) and not path.is_symlink() and measure(path) == entry):
                fresh_files.remove(path)
                part = path.with_suffix(".part")
                what = f"{source}, {pushed.name_of(entry.sha256, number)},"
                again = f"push checkpoint {number} again with verify"
                try:
                    sound = streams.receive(self._files, source, entry, part)
                except FileNotFoundError as error:
                    raise Corruption(f"{what} is missing at {self._url}; {again}") from unsecret(error)
                if not sound:
                    raise Corruption(f"{what} is damaged at {self._url}: it is not what was pushed; {again}")
                os.rename(part, path)
            meter(entry.bytes)

        try:
            with self._translated("read", resumable=True):
                streams.move_all(receive, missing, how.jobs)
        except Corruption as error:
            if number in self.numbers():
                raise
            what = f"checkpoint {series_name(number)} at {self._url}"
            raise CheckpointNotFound(f"{what} was deleted while it was read; pull a newer one") from error

    def leads_from(self, number: int, id: str) -> bool:
        """Whether deltas lead from the checkpoint with this id to the one with this number. Raises as id_of does."""
        return id in self._read(number)[1].ids

    def pull_changes(
        self, number: int, since: str, folder: Path, how: Pulling = PULLING
    ) -> tuple[Manifest, list[DeltaFile]]:
        """Copy a checkpoint without its rows to a folder, and the deltas that lead to it from an earlier one.

        since: the id of the earlier one; only the key files that record what changed since are copied. Returns the
        manifest and the deltas. Repeating an interrupted call resumes it. REQUIRES: leads_from(). Raises as pull()
        does.
        """
        pushed = self._read(number)[1]
        described, todo = pushed.described, pushed.deltas[pushed.ids.index(since) :]
        later = {f"{layout.CHANGES}/{file}" for file in epochs.files_of(epochs.since(described.changes, since) or [])}
        named = {
            name: entry
            for name, entry in described.files.items()
            if name in later or not name.startswith((f"{layout.ROWS}/", f"{layout.CHANGES}/"))
        }
        wanted, received = [*named.values(), *(delta.file for delta in todo)], folder / layout.PULLED
        self._receive(pushed, number, wanted, received, how)
        for name, entry in named.items():
            (folder / name).parent.mkdir(exist_ok=True)
            fresh_files.remove(folder / name)
            fresh_files.link_or_copy(received / entry.sha256, folder / name)
        return described, [self._opened(pushed, delta, number, received) for delta in todo]

    def pull_attached(self, number: int, target: Path) -> dict[str, Path]:
        """Copy the files saved beside a checkpoint's rows to a new folder; returns their paths, by name.

        Raises as pull() does.
        """
        pushed = self._read(number)[1]
        entries = {name.partition("/")[2]: pushed.described.files[name] for name in pushed.described.attached}
        with atomic_directory(target) as folder:
            received = folder / layout.PULLED
            self._receive(pushed, number, entries.values(), received)
            for name, entry in entries.items():
                fresh_files.link_or_copy(received / entry.sha256, folder / name)
            fresh_files.remove(received)
        return {name: target / name for name in sorted(entries)}

    def _opened(self, pushed: PushedCheckpoint, delta: Delta, number: int, received: Path) -> DeltaFile:
        """Open a received delta. Raises Corruption unless it leads from the previous one to its own checkpoint."""
        what = f"{self._file_at(delta.sha256)}, {pushed.name_of(delta.sha256, number)},"
        found, at = DeltaFile(received / delta.sha256, what), pushed.deltas.index(delta)
        if (found.since, found.id) != (pushed.ids[at], delta.id):
            raise Corruption(f"{what} begins or ends at the wrong checkpoint; push {number} with whole=True")
        return found


def _begin(pushed: PushedCheckpoint, have: list[Checkpoint]) -> Checkpoint | None:
    """Return the undamaged local checkpoint from which the fewest deltas lead, None if there is none."""
    by_id = {checkpoint.id: checkpoint for checkpoint in have}
    for id in reversed(pushed.ids if pushed.base is not None else []):
        if id in by_id and not any(inventory.damages(by_id[id].path, inside(by_id[id]), deep=False)):
            return by_id[id]
    return None


def _has_size(path: Path, entry: FileEntry) -> bool:
    """Whether a local file has the expected size."""
    try:
        return path.stat().st_size == entry.bytes
    except OSError:
        return False
