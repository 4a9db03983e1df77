"""Pushes checkpoints to a URL, whole or as deltas (kvemb.offline.chain), and removes them there.

One process at a time may write to a URL. After an interruption, the next push skips the files already sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kvemb.durability import layout, manifest
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import FileEntry, Manifest
from kvemb.durability.scratch import scratch
from kvemb.errors import CheckpointNotFound, Corruption
from kvemb.handle import inside
from kvemb.offline import streams
from kvemb.offline.chain import MAX_DELTAS, Delta, PushedCheckpoint, check_owner, is_row_file, text_of
from kvemb.offline.delta_file import write_delta
from kvemb.offline.remote import FILES, RemoteCheckpoints
from kvemb.progress import Meter, Progress

# The deltas of a base have at most this share of its bytes. So a series pushes at most twice the bytes that changed,
# and a pull transfers at most twice the bytes of the table.
MAX_SHARE = 1.0
# Files transferred concurrently: for most files the network's latency is longer than the transfer.
JOBS = 8
# How many earlier checkpoints at a URL are tried as the start of a delta.
MAX_LOOKED_AT = 8


@dataclass(frozen=True)
class Transfer:
    """Hold the result of ``CheckpointManager.push``.

    Attributes:
        number: The checkpoint's number.
        files: How many files were sent.
        nbytes: Their bytes.
        shared: How many files the URL had already.
        deltas: How many deltas lead to the checkpoint there; 0 if it is whole.
    """

    number: int
    files: int
    nbytes: int
    shared: int
    deltas: int = 0


class _Plan(NamedTuple):
    """A way to store a checkpoint at the URL. local: files that can be sent, by checksum. text: None if it is there."""

    pushed: PushedCheckpoint
    local: dict[str, Path]
    text: bytes | None


class Pusher(RemoteCheckpoints):
    """Checkpoints at a URL, with push and prune. See RemoteCheckpoints. max_deltas: of a base."""

    max_deltas = MAX_DELTAS

    def push(
        self,
        checkpoint: Checkpoint,
        number: int,
        *,
        verify: bool = False,
        whole: bool = False,
        take_over: bool = False,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a checkpoint to the URL under its number: first the files that the URL lacks, then its description.

        It is sent as the delta from an earlier checkpoint at the URL, if the changes since then are known and the
        deltas stay small compared with their base; otherwise whole, as a new base. whole: always send it whole. A
        remote file of the right size was hashed when it was sent, and is kept; a file of another size is replaced.
        verify: also read remote files, and replace damaged ones. If a damaged file is not available locally, the
        checkpoint is sent whole. Raises FileExistsError if another checkpoint has that number, or the newest one is of
        another store and the caller does not take_over; TransferError; Corruption if a local file does not match the
        manifest.
        """
        self._check_destination()
        if self.is_of_cluster:
            raise FileExistsError(
                f"{self._url} has a cluster's checkpoints, which only the cluster writes; push elsewhere"
            )
        if not take_over:
            self._check_owner(checkpoint)
        there = self._there(checkpoint, number)
        with self._translated("list"):
            found = {path.rpartition("/")[2]: known["size"] for path, known in self._found(FILES).items()}
        with scratch("kvemb-push-") as folder, layout.reading_checkpoint(checkpoint.path):
            for plan in self._plans(checkpoint, number, there, found, folder, whole=whole):
                if (done := self._send(plan, number, found, verify, jobs, progress)) is not None:
                    return done
        raise AssertionError("a whole checkpoint can always be sent")

    def _plans(
        self,
        checkpoint: Checkpoint,
        number: int,
        there: PushedCheckpoint | None,
        found: dict[str, int],
        folder: Path,
        *,
        whole: bool,
    ) -> Iterator[_Plan]:
        """Yield the ways to store a checkpoint there: as it is there already, as a delta, whole."""
        local = {entry.sha256: checkpoint.path / name for name, entry in checkpoint.inventory.items()}
        if there is not None and not (whole and there.deltas):
            yield _Plan(there, local, None)
        if there is None and not whole and (made := self._delta(checkpoint, number, found, folder)) is not None:
            path, delta = made
            yield _Plan(delta, {**local, delta.deltas[-1].sha256: path}, text_of(delta))
        yield _Plan(PushedCheckpoint(inside(checkpoint)), local, (checkpoint.path / manifest.NAME).read_bytes())

    def _send(
        self, plan: _Plan, number: int, found: dict[str, int], verify: bool, jobs: int, progress: Progress | None
    ) -> Transfer | None:
        """Carry out a plan; returns None if the URL lacks files that are not available locally."""
        files = plan.pushed.files
        present = [entry for sha256, entry in files.items() if found.get(sha256) == entry.bytes]
        missing = set(files) - {entry.sha256 for entry in present}
        total = sum(files[sha256].bytes for sha256 in missing) + verify * sum(entry.bytes for entry in present)
        if missing - set(plan.local):
            return None
        meter = Meter(total, progress)

        def check(entry: FileEntry) -> None:
            if streams.matches(self._files, self._file_at(entry.sha256), entry):
                meter(entry.bytes)
            else:
                missing.add(entry.sha256)

        def send(entry: FileEntry) -> None:
            target = self._file_at(entry.sha256)
            if entry.sha256 in found:
                self._files.rm_file(target)  # never write through a file that may have other links
            self._make_folder_of(target)
            streams.send(plan.local[entry.sha256], entry, self._files, target)
            meter(entry.bytes)

        if verify:
            with self._translated("read"):
                streams.move_all(check, present, jobs)
            if missing - set(plan.local):
                return None
        sent = [files[sha256] for sha256 in sorted(missing)]
        with self._translated("write to", resumable=True):
            streams.move_all(send, sent, jobs)
            if plan.text is not None:
                self._publish(number, plan.text)
        nbytes = sum(entry.bytes for entry in sent)
        return Transfer(number, len(sent), nbytes, len(files) - len(sent), len(plan.pushed.deltas))

    def _delta(
        self, checkpoint: Checkpoint, number: int, found: dict[str, int], folder: Path
    ) -> tuple[Path, PushedCheckpoint] | None:
        """Write the delta from an earlier checkpoint at the URL to folder; returns the file and the description.

        None if the checkpoint is better sent whole: it follows no checkpoint that is there, or the deltas would exceed
        their share of the base, or the whole is no larger than the delta.
        """
        if (follows := self._followed(checkpoint, number, found)) is None:
            return None
        earlier, before = follows
        described = inside(checkpoint)
        rows = {entry.sha256: entry for name, entry in checkpoint.inventory.items() if is_row_file(name)}
        whole = sum(entry.bytes for sha256, entry in rows.items() if found.get(sha256) != entry.bytes)
        deltas = sum(delta.bytes for delta in before.deltas)
        most = min(int(MAX_SHARE * before.base_bytes) - deltas, whole)
        path = folder / f"{series_name(number)}.delta"
        with layout.as_cold_store_error(f"write {path}"):
            entry = write_delta(checkpoint.path, described, before.described, path, most)
        if entry is None:
            return None
        return path, before.followed_by(earlier, described, Delta(number, checkpoint.id, entry.bytes, entry.sha256))

    def _followed(
        self, checkpoint: Checkpoint, number: int, found: dict[str, int]
    ) -> tuple[int, PushedCheckpoint] | None:
        """Return the newest complete earlier checkpoint at the URL since which changes are known."""
        known = {epoch.since for epoch in inside(checkpoint).changes}
        for earlier in [each for each in self.numbers() if each < number][: -MAX_LOOKED_AT - 1 : -1]:
            with suppress(Corruption, CheckpointNotFound):
                pushed = self._read(earlier)[1]
                complete = all(found.get(sha256) == entry.bytes for sha256, entry in pushed.files.items())
                if pushed.described.id in known and complete and len(pushed.deltas) < self.max_deltas:
                    return earlier, pushed
        return None

    def _check_destination(self) -> None:
        """Raise FileExistsError or ValueError if the URL is a local store or checkpoint, or inside a store."""
        if "file" in self._files.protocol:
            root = Path(self._root)
            layout.check_outside_stores(root, "copy")
            if kind := "store" if layout.is_store(root) else "checkpoint" if layout.is_checkpoint(root) else None:
                raise FileExistsError(f"{root} is a {kind}; name another directory")

    def _check_owner(self, checkpoint: Checkpoint) -> None:
        """Raise FileExistsError if the newest readable checkpoint at the URL is of another store."""
        for number in reversed(self.numbers()):
            with suppress(Corruption, CheckpointNotFound):
                owner, newest = self.store_of(number), f"{series_name(number)} at {self._url}"
                check_owner(owner, inside(checkpoint).store, newest, str(checkpoint.path))
                return

    def _there(self, checkpoint: Checkpoint, number: int) -> PushedCheckpoint | None:
        """Return the checkpoint at the URL; a damaged manifest counts as missing. Raises FileExistsError."""
        if number not in self.numbers():
            return None
        try:
            _, pushed = self._read(number)
        except Corruption:
            return None
        if _without_rows(pushed.described) != _without_rows(inside(checkpoint)):
            raise FileExistsError(
                f"{self._url} has another checkpoint {series_name(number)}, with the id {pushed.described.id}; "
                "push elsewhere"
            )
        return pushed

    def _publish(self, number: int, text: bytes) -> None:
        """Write a manifest atomically: object stores show only complete files; elsewhere it is renamed."""
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

    def prune(self, keep: int, store: str, pinned: Collection[int] = ()) -> list[int]:
        """Delete a store's checkpoints but the pinned ones and the newest `keep`, then unreferenced files.

        Returns the numbers deleted.

        store: its identity; checkpoints of other stores stay. Bases and deltas of deleted checkpoints stay as long as a
        kept checkpoint needs them.

        REQUIRES: no push to the URL at the same time. Raises TransferError; Corruption, before anything is deleted, if
        a description is damaged: it might be another store's.
        """
        pushed = {number: self._read(number)[1] for number in self.numbers()}
        own = [number for number, each in pushed.items() if each.described.store == store and number not in pinned]
        deleted = own[:-keep]
        needed = {sha256 for number in pushed.keys() - {*deleted} for sha256 in pushed[number].files}
        with self._translated("delete from"):
            for number in deleted:
                self._files.rm_file(self._manifest_at(number))
            for path in self._found(FILES):
                if path.rpartition("/")[2] not in needed:
                    self._files.rm_file(path)
        return deleted


def _without_rows(described: Manifest) -> Manifest:
    """Return a manifest without RocksDB's files, which differ between a checkpoint and one made of its deltas."""
    return replace(described, files={name: each for name, each in described.files.items() if not is_row_file(name)})
