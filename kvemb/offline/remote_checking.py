"""Verifies the checkpoints at a URL, each with its base and its deltas, file by file. Reads only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from kvemb.durability.layout import series_name
from kvemb.durability.manifest import FileEntry
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.masking import masked
from kvemb.offline import streams
from kvemb.offline.chain import PushedCheckpoint
from kvemb.offline.pushing import JOBS
from kvemb.offline.remote import CHECKPOINTS, FILES, RemoteCheckpoints
from kvemb.progress import Meter, Progress

# The largest number of checkpoints that a finding lists.
_MAX_LISTED = 10


@dataclass
class CheckResult:
    """Result of check(). findings: a line for each damaged file. sound: the numbers of complete checkpoints.

    described: the description of each checkpoint that could be read, by number. files, nbytes: needed by all of them
    together.
    """

    findings: list[str] = field(default_factory=list)
    sound: list[int] = field(default_factory=list)
    described: dict[int, PushedCheckpoint] = field(default_factory=dict)
    files: int = 0
    nbytes: int = 0


class RemoteChecking(RemoteCheckpoints):
    """Checkpoints at a URL, with check."""

    def check(
        self, *, number: int | None = None, deep: bool, progress: Progress | None = None, jobs: int = JOBS
    ) -> CheckResult:
        """Check all checkpoints, and the sizes of the files that they need; deep: also compare the checksums.

        number: the only checkpoint to check; None: all. progress(done, total): called with bytes as they are read.
        Raises CheckpointNotFound if there is none; TransferError.
        """
        done = CheckResult()
        if not (numbers := self.numbers()):
            raise CheckpointNotFound(f"there is no checkpoint at {self._url}")
        needed: dict[str, FileEntry] = {}
        users: dict[str, list[int]] = defaultdict(list)
        for each in numbers if number is None else [number]:
            try:
                done.described[each] = self._read(each)[1]
            except (Corruption, UnsupportedFormat) as error:
                done.findings.append(str(error))
                continue
            except CheckpointNotFound:  # deleted since it was listed
                if number is not None:
                    raise
                continue
            for sha256, entry in done.described[each].files.items():
                needed[sha256] = entry
                users[sha256].append(each)
        done.files, done.nbytes = len(needed), sum(entry.bytes for entry in needed.values())
        harmed = self._harmed(needed, deep, progress, jobs)
        if harmed:
            harmed = self._still_needed(harmed, done, users, number)
        for sha256 in sorted(harmed, key=lambda each: (users[each], each)):
            what = done.described[users[sha256][0]].name_of(sha256, users[sha256][0])
            listed = ", ".join(map(series_name, users[sha256][:_MAX_LISTED]))
            more = f" and {len(users[sha256]) - _MAX_LISTED:,} more" if len(users[sha256]) > _MAX_LISTED else ""
            done.findings.append(
                f"{masked(self._file_at(sha256))}, {what}, {harmed[sha256]}: needed by {listed}{more}; push with verify"
            )
        done.sound = [number for number, pushed in done.described.items() if not harmed.keys() & pushed.files.keys()]
        return done

    def _still_needed(
        self, harmed: dict[str, str], done: CheckResult, users: dict[str, list[int]], number: int | None
    ) -> dict[str, str]:
        """Return the harmed files of numbers that are still there; those that were deleted meanwhile are left out."""
        there = set(self.numbers())
        if number is not None and number not in there:
            raise CheckpointNotFound(f"checkpoint {series_name(number)} at {self._url} was deleted while it was read")
        done.described = {each: pushed for each, pushed in done.described.items() if each in there}
        for sha256 in harmed:
            users[sha256] = [each for each in users[sha256] if each in there]
        return {sha256: how for sha256, how in harmed.items() if users[sha256]}

    def _harmed(self, needed: dict[str, FileEntry], deep: bool, progress: Progress | None, jobs: int) -> dict[str, str]:
        """Return what is wrong with each damaged file, by checksum."""
        with self._translated("list"):
            sizes = {path.rpartition("/")[2]: known["size"] for path, known in self._found(FILES).items()}
        harmed = {sha256: "is missing" for sha256 in needed if sha256 not in sizes}
        for sha256, entry in needed.items():
            if sizes.get(sha256, entry.bytes) != entry.bytes:
                harmed[sha256] = f"has {sizes[sha256]:,} bytes and should have {entry.bytes:,}"
        if deep:
            present = [entry for sha256, entry in needed.items() if sha256 not in harmed]
            meter = Meter(sum(entry.bytes for entry in present), progress)

            def read(entry: FileEntry) -> None:
                try:
                    if not streams.matches(self._files, self._file_at(entry.sha256), entry):
                        harmed[entry.sha256] = "is damaged: it is not what was pushed"
                except FileNotFoundError:
                    harmed[entry.sha256] = "is missing"
                meter(entry.bytes)

            with self._translated("read"):
                streams.move_all(read, present, jobs)
        return harmed


def is_pushed(path: Path) -> bool:
    """Whether checkpoints were pushed to this local directory."""
    return any((path / CHECKPOINTS).glob("[0-9]*.json"))
