"""Which keys changed since which checkpoint, so that the cost of a delta is proportional to the change.

The time between two checkpoints is an epoch. The keys of all writes to the cold store are recorded in the current
epoch: in memory first, then in key files in live/changes. A checkpoint has hard links to the files of the epochs before
it, and its manifest names them (manifest.Epoch). An epoch may name keys that did not change, but misses none that did.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kvemb import fresh_files
from kvemb.durability import layout
from kvemb.durability.epochs import files_of, join_files, since, take_over
from kvemb.durability.keyfile import distinct, merged, read_keys, write_keys
from kvemb.durability.manifest import Epoch, EpochChanges
from kvemb.errors import Corruption
from kvemb.limits import DEFAULT, Limits
from kvemb.rows.codec import Ordered
from kvemb.threads.interrupts import uninterrupted


def recorded(folder: Path, epochs: list[Epoch], variable: str) -> tuple[bool, Iterator[Ordered]]:
    """Return whether a variable was cleared in these epochs, and the keys recorded since then, ascending.

    folder: of the key files. Iterating raises Corruption, naming a file.
    """
    cleared = False
    files: list[str] = []
    for epoch in epochs:
        changed = epoch.variables.get(variable, EpochChanges())
        if changed.cleared:
            cleared, files = True, []
        files += [file for file in changed.files if file not in files]
    return cleared, merged(_reading(folder / file) for file in files)


def _reading(path: Path) -> Iterator[Ordered]:
    try:
        yield from read_keys(path)
    except FileNotFoundError as error:
        layout.check_not_deleted(path.parent.parent, error)
        raise Corruption(f"{path} is missing; restore from another checkpoint") from error


@dataclass
class _Buffer:
    """Keys of a variable that are not in a file yet. count: of all parts."""

    parts: list[Ordered] = field(default_factory=list)
    count: int = 0


class ChangeLog:
    """The epochs of an open store. directory: of its key files. epochs: those of the durable point it was opened from.

    sealed_epochs: number of seal_epoch() calls. clears: how often each variable was cleared or dropped since it was
    opened. buffered_keys: the number of keys in memory that are in no file yet.
    """

    def __init__(self, directory: Path, epochs: list[Epoch], limits: Limits = DEFAULT) -> None:
        self._directory, self._limits = directory, limits
        self._epochs = [epoch.copied() for epoch in epochs]
        self._lock = threading.Lock()
        self._buffers: dict[str, _Buffer] = {}
        self.buffered_keys = 0
        self._sealed: set[str] = set()  # files of the last seal_epoch(), which a point may still have to link
        self.sealed_epochs = 0
        self.clears: Counter[str] = Counter()
        self._last_number = _last_number(directory)

    def record(self, variable: str, keys: Ordered) -> None:
        """Record keys (n,), in any order, that changed or are about to change. Raises OSError."""
        with uninterrupted(), self._lock:
            buffer = self._buffers.setdefault(variable, _Buffer())
            buffer.parts.append(keys)
            buffer.count += len(keys)
            self.buffered_keys += len(keys)
            while self.buffered_keys >= self._limits.change_buffer_keys:
                self._write_out(max(self._buffers, key=lambda name: self._buffers[name].count))

    def record_cleared(self, variable: str) -> None:
        """Record that all rows of a variable were removed."""
        with uninterrupted(), self._lock:
            self.clears[variable] += 1
            self.buffered_keys -= self._buffers.pop(variable, _Buffer()).count
            before = self._epochs[-1].variables.get(variable, EpochChanges())
            self._epochs[-1].variables[variable] = replace(before, cleared=True, files=[])
            self._drop(before.files)

    def record_dropped(self, variable: str, *, left: bool = False) -> None:
        """Record that a variable was dropped with all its rows; another may be created under its name.

        left: it was not dropped, but is no longer in checkpoints.
        """
        self.record_cleared(variable)
        with uninterrupted(), self._lock:
            changed = self._epochs[-1].variables[variable]
            changed.dropped, changed.left = True, left and (changed.left or not changed.dropped)

    def seal_epoch(self) -> list[Epoch]:
        """Write the keys in memory to files; returns a copy of all epochs, the current one last. Raises OSError."""
        with uninterrupted(), self._lock:
            self.sealed_epochs += 1
            for variable in list(self._buffers):
                self._write_out(variable)
            for changed in self._epochs[-1].variables.values():
                if len(changed.files) > self._limits.change_files:
                    # Only the older half: readers of a recent point have read these already.
                    self._join(changed, 0, len(changed.files) - self._limits.change_files // 2)
            self._forget_oldest()
            old = self._epochs[: -self._limits.change_exact_epochs]
            self._drop(list(join_files(old, self._limits.change_old_files, self._bytes_of, self._joined)))
            self._sealed = files_of(self._epochs)
            return [epoch.copied() for epoch in self._epochs]

    def add(self, sealed: list[Epoch], variable: str, keys: Ordered) -> None:
        """Record keys (n,), distinct and ascending, that changed before the seal_epoch() that returned `sealed`."""
        if len(keys) == 0:
            return
        with uninterrupted(), self._lock:
            path = self._new_path()
        write_keys(path, [keys])
        with uninterrupted(), self._lock:
            files = sealed[-1].variables.setdefault(variable, EpochChanges()).files
            # The files that a point lists are a prefix of those that later points list: files_between() relies on this.
            self._epochs[-1].variables.setdefault(variable, EpochChanges()).files.insert(len(files), path.name)
            files.append(path.name)
            self._sealed.add(path.name)

    def begin(self, checkpoint: str, sealed: list[Epoch]) -> None:
        """Begin the epoch after a checkpoint that was made of `sealed`, as of that seal_epoch() call."""
        before = sealed[-1].copied()
        with uninterrupted(), self._lock:
            later = Epoch(checkpoint)
            for name, changed in self._epochs[-1].variables.items():
                earlier = before.variables.get(name, EpochChanges())
                files = [file for file in changed.files if file not in earlier.files]
                if files:
                    later.variables[name] = EpochChanges(files=files)
            self._epochs[-1:] = [before, later]

    def is_as_of(self, epochs: list[Epoch]) -> bool:
        """Whether nothing was recorded since these were all epochs, as sealed."""
        with uninterrupted(), self._lock:
            return self.buffered_keys == 0 and self._epochs == epochs

    def epochs(self) -> list[Epoch]:
        """Return a copy of all epochs, the current one last; keys in memory are in none of their files."""
        with uninterrupted(), self._lock:
            return [epoch.copied() for epoch in self._epochs]

    def cleared_since(self, position: str) -> set[str]:
        """The names of the variables that were cleared or dropped since a checkpoint."""
        with uninterrupted(), self._lock:
            epochs = since(self._epochs, position) or []
            return {name for epoch in epochs for name, changed in epoch.variables.items() if changed.cleared}

    def adopt(self, includes: list[str], position: str, cleared: Collection[str], names: Collection[str]) -> None:
        """Record that the rows now equal those of another store's checkpoint, except for the keys recorded since the
        checkpoint `position`.

        includes: its id, after those of the checkpoints between these two. cleared: variables that were cleared or
        dropped here, not there. names: of all current variables. REQUIRES: no point is being written.
        """
        with uninterrupted(), self._lock:
            self._epochs.append(take_over(since(self._epochs, position) or [], includes, cleared, names))

    def go_back(self, directory: Path, epochs: list[Epoch]) -> None:
        """Continue from the epochs of a point to which the store goes back. directory: where its key files are now.

        What was recorded since is forgotten, as are the rows. REQUIRES: no point is being written.
        """
        with uninterrupted(), self._lock:
            self._directory, self._epochs = directory, [epoch.copied() for epoch in epochs]
            self._buffers, self.buffered_keys, self._sealed = {}, 0, set()
            self.sealed_epochs += 1  # a load in progress must record its keys again
            self._last_number = _last_number(directory)

    def link_to(self, folder: Path, epochs: list[Epoch]) -> None:
        """Link the files of epochs into a folder, which is created if there are any. Raises OSError."""
        if files := files_of(epochs):
            folder.mkdir(exist_ok=True)
        for file in files:
            fresh_files.link_or_copy(f"{self._directory}/{file}", f"{folder}/{file}")

    # REQUIRES for all below: the lock is held.

    def _new_path(self) -> Path:
        self._last_number += 1
        return self._directory / layout.keys_name(self._last_number)

    def _write_out(self, variable: str) -> None:
        path, buffer = self._new_path(), self._buffers[variable]
        write_keys(path, [distinct(np.concatenate(buffer.parts))])
        del self._buffers[variable]
        self.buffered_keys -= buffer.count
        changed = self._epochs[-1].variables.setdefault(variable, EpochChanges())
        changed.files.append(path.name)
        self._join_recent(changed)

    def _join_recent(self, changed: EpochChanges) -> None:
        """Join the last files, each at most as large as all files after it together, once there are several.

        So even a long epoch has few files, and a key is rewritten only when its file's size doubles.
        """
        end = at = len(changed.files)
        following = 0
        while at and changed.files[at - 1] not in self._sealed:
            nbytes = self._bytes_of(changed.files[at - 1])
            if following and nbytes > following:
                break
            following += nbytes
            at -= 1
        if end - at >= max(2, self._limits.change_files // 2):
            self._join(changed, at, end)

    def _join(self, changed: EpochChanges, begin: int, end: int) -> None:
        """Make one file of files begin to end."""
        joined = changed.files[begin:end]
        changed.files[begin:end] = [self._joined(joined)]
        self._drop(joined)

    def _joined(self, files: list[str]) -> str:
        """Write a file with the keys of others; returns its name."""
        path = self._new_path()
        write_keys(path, merged(read_keys(self._directory / file) for file in files))
        return path.name

    def _forget_oldest(self) -> None:
        forgotten: set[str] = set()
        most, max_bytes = self._limits.change_epochs, self._limits.change_bytes
        while len(self._epochs) > 2 and (len(self._epochs) > most or self._nbytes() > max_bytes):
            forgotten |= files_of([self._epochs.pop(0)])
        self._drop(list(forgotten))

    def _nbytes(self) -> int:
        return sum(map(self._bytes_of, files_of(self._epochs)))

    def _bytes_of(self, file: str) -> int:
        return (self._directory / file).stat().st_size

    def _drop(self, files: list[str]) -> None:
        kept = files_of(self._epochs)
        for file in files:
            if file not in kept:
                (self._directory / file).unlink(missing_ok=True)


def _last_number(directory: Path) -> int:
    return max((int(path.stem) for path in directory.glob("*.keys")), default=0)
