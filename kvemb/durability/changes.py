"""Which keys changed since which checkpoint, so that the cost of a delta is proportional to the change.

The time between two checkpoints is an epoch. The keys of all writes to the cold store are recorded in the current
epoch: in memory first, then in key files in live/changes. A checkpoint has hard links to the files of the epochs before
it, and its manifest names them (manifest.Epoch). An epoch may name keys that did not change, but misses none that did.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np

from kvemb.durability import fresh_files, layout
from kvemb.durability.keyfile import distinct, merged, read_keys, write_keys
from kvemb.durability.manifest import Changed, Epoch
from kvemb.errors import Corruption
from kvemb.limits import DEFAULT, Limits
from kvemb.rows.codec import Ordered


def since(epochs: list[Epoch], checkpoint: str) -> list[Epoch] | None:
    """Return the epochs from a checkpoint on, None if it is unknown or its epoch was deleted."""
    for at, epoch in enumerate(epochs):
        if epoch.since == checkpoint:
            return epochs[at:]
    return None


def dropped(epochs: list[Epoch]) -> set[str]:
    """Return the names of the variables dropped in these epochs; some may have been created again since."""
    return {name for epoch in epochs for name, changed in epoch.variables.items() if changed.dropped}


def dropped_after(earlier: list[Epoch], later: list[Epoch]) -> set[str] | None:
    """Return the names of the variables dropped between two durable points of a store, given the epochs of each.

    None if the later point does not say: its epochs do not reach back to the earlier one.
    """
    between = since(later, earlier[-1].since)
    return None if between is None else (dropped(between[:1]) - dropped(earlier[-1:])) | dropped(between[1:])


def files_between(earlier: list[Epoch], later: list[Epoch], variable: str) -> list[str] | None:
    """Return the key files that have all keys of a variable that changed between two durable points of a store.

    earlier, later: the epochs of each point. None if the later one does not say: its epochs do not reach back, or the
    variable was cleared.
    """
    between = since(later, earlier[-1].since)
    if between is None:
        return None
    known = earlier[-1].variables.get(variable, Changed()).files
    changes = [epoch.variables[variable] for epoch in between if variable in epoch.variables]
    if any(changed.cleared or changed.dropped for changed in changes):
        return None
    files = [file for changed in changes for file in changed.files]
    # A file that is listed before a known one was joined of known ones.
    first = max((at + 1 for at, file in enumerate(files) if file in known), default=0)
    return list(dict.fromkeys(files[first:]))


def recorded(folder: Path, epochs: list[Epoch], variable: str) -> tuple[bool, Iterator[Ordered]]:
    """Return whether a variable was cleared in these epochs, and the keys recorded since then, ascending.

    folder: of the key files. Iterating raises Corruption, naming a file.
    """
    cleared = False
    files: list[str] = []
    for epoch in epochs:
        changed = epoch.variables.get(variable, Changed())
        if changed.cleared:
            cleared, files = True, []
        files += [file for file in changed.files if file not in files]
    return cleared, merged(_reading(folder / file) for file in files)


def _reading(path: Path) -> Iterator[Ordered]:
    try:
        yield from read_keys(path)
    except FileNotFoundError as error:
        raise Corruption(f"{path} is missing; restore from another checkpoint") from error


class ChangeLog:
    """The epochs of an open store. directory: of its key files. epochs: those of the durable point it was opened from.

    sealed_epochs: number of seal_epoch() calls.
    """

    def __init__(self, directory: Path, epochs: list[Epoch], limits: Limits = DEFAULT) -> None:
        self._directory, self._epochs, self._limits = directory, epochs, limits
        self._lock = threading.Lock()
        self._buffers: dict[str, list[Ordered]] = {}
        self.sealed_epochs = 0
        self._last_number = max((int(path.stem) for path in directory.glob("*.keys")), default=0)

    def record(self, variable: str, keys: Ordered) -> None:
        """Record keys (n,), in any order, that changed or are about to change. Raises OSError."""
        with self._lock:
            buffer = self._buffers.setdefault(variable, [])
            buffer.append(keys)
            if sum(map(len, buffer)) >= self._limits.change_buffer_keys:
                self._write_out(variable)

    def record_cleared(self, variable: str) -> None:
        """Record that all rows of a variable were removed."""
        with self._lock:
            self._buffers.pop(variable, None)
            before = self._epochs[-1].variables.get(variable, Changed())
            self._epochs[-1].variables[variable] = Changed(cleared=True, dropped=before.dropped)
            self._drop(before.files)

    def record_whole(self, variable: str, keys: Iterable[Ordered]) -> None:
        """Record that a variable consists of the rows of these keys, and that earlier checkpoints may have others.

        keys: batches (n,), in any order. Raises OSError. REQUIRES: no point is being written.
        """
        self.record_cleared(variable)
        for batch in keys:
            self.record(variable, batch)

    def record_dropped(self, variable: str) -> None:
        """Record that a variable was dropped with all its rows; another may be created under its name."""
        self.record_cleared(variable)
        with self._lock:
            self._epochs[-1].variables[variable].dropped = True

    def seal_epoch(self) -> list[Epoch]:
        """Write the keys in memory to files; returns a copy of all epochs, the current one last. Raises OSError."""
        with self._lock:
            self.sealed_epochs += 1
            for variable in list(self._buffers):
                self._write_out(variable)
            for changed in self._epochs[-1].variables.values():
                if len(changed.files) > self._limits.change_files:
                    self._join_files(changed)
            self._forget_oldest()
            return deepcopy(self._epochs)

    def add(self, sealed: list[Epoch], variable: str, keys: Ordered) -> None:
        """Record keys (n,), distinct and ascending, that changed before the seal_epoch() that returned `sealed`."""
        if len(keys) == 0:
            return
        with self._lock:
            path = self._new_path()
        write_keys(path, [keys])
        with self._lock:
            files = sealed[-1].variables.setdefault(variable, Changed()).files
            # What a point lists is the beginning of what later ones do: files_between() relies on it.
            self._epochs[-1].variables.setdefault(variable, Changed()).files.insert(len(files), path.name)
            files.append(path.name)

    def begin(self, checkpoint: str, sealed: list[Epoch]) -> None:
        """Begin the epoch after a checkpoint that was made of `sealed`, at the time of that seal_epoch() call."""
        before = sealed[-1]
        with self._lock:
            later = Epoch(checkpoint)
            for name, changed in self._epochs[-1].variables.items():
                earlier = before.variables.get(name, Changed())
                files = [file for file in changed.files if file not in earlier.files]
                if files:
                    later.variables[name] = Changed(files=files)
            self._epochs[-1:] = [before, later]

    def ancestors(self) -> list[str]:
        """The ids of the checkpoints since which changes are known, the newest first."""
        with self._lock:
            return [epoch.since for epoch in reversed(self._epochs)]

    def adopt(self, checkpoint: str, position: str) -> None:
        """Record that the rows now equal those of another store's checkpoint, except for the keys recorded since the
        checkpoint `position`.
        """
        with self._lock:
            own = Epoch(checkpoint)
            for epoch in deepcopy(since(self._epochs, position) or []):
                for name, changed in epoch.variables.items():
                    total = own.variables.setdefault(name, Changed())
                    total.cleared |= changed.cleared
                    total.dropped |= changed.dropped
                    total.files += changed.files
            self._epochs.append(own)

    def link_to(self, folder: Path, epochs: list[Epoch]) -> None:
        """Link the files of epochs into a folder, which is created if there are any. Raises OSError."""
        for file in files_of(epochs):
            folder.mkdir(exist_ok=True)
            fresh_files.link_or_copy(self._directory / file, folder / file)

    def of(self, variable: str) -> Recorder:
        """Return the recorder for a variable's tiers."""
        return Recorder(self, variable)

    # REQUIRES for all below: the lock is held.

    def _new_path(self) -> Path:
        self._last_number += 1
        return self._directory / layout.keys_name(self._last_number)

    def _write_out(self, variable: str) -> None:
        path = self._new_path()
        write_keys(path, [distinct(np.concatenate(self._buffers[variable]))])
        del self._buffers[variable]
        self._epochs[-1].variables.setdefault(variable, Changed()).files.append(path.name)

    def _join_files(self, changed: Changed) -> None:
        """Make one file of the older half: readers of a recent point have read these already."""
        path, at = self._new_path(), len(changed.files) - self._limits.change_files // 2
        old, recent = changed.files[:at], changed.files[at:]
        write_keys(path, merged(read_keys(self._directory / file) for file in old))
        changed.files = [path.name, *recent]
        self._drop(old)

    def _forget_oldest(self) -> None:
        forgotten: set[str] = set()
        most, max_bytes = self._limits.change_epochs, self._limits.change_bytes
        while len(self._epochs) > 2 and (len(self._epochs) > most or self._nbytes() > max_bytes):
            forgotten |= files_of([self._epochs.pop(0)])
        self._drop(list(forgotten))

    def _nbytes(self) -> int:
        return sum((self._directory / file).stat().st_size for file in files_of(self._epochs))

    def _drop(self, files: list[str]) -> None:
        kept = files_of(self._epochs)
        for file in files:
            if file not in kept:
                (self._directory / file).unlink(missing_ok=True)


class Recorder:
    """contracts.Recorder: one variable's side of the ChangeLog."""

    def __init__(self, log: ChangeLog, variable: str) -> None:
        self._log, self._variable = log, variable

    def record(self, keys: Ordered) -> None:
        """See contracts.Recorder."""
        self._log.record(self._variable, keys)

    def record_cleared(self) -> None:
        """See contracts.Recorder."""
        self._log.record_cleared(self._variable)

    def sealed_epochs(self) -> int:
        """See contracts.Recorder."""
        return self._log.sealed_epochs


def files_of(epochs: list[Epoch]) -> set[str]:
    """The names of all key files of epochs."""
    return {file for epoch in epochs for changed in epoch.variables.values() for file in changed.files}
