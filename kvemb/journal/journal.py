"""The log of writes, for stores opened with durability="write": every acknowledged write survives a crash.

A segment STORE/log/NNNNNN.log has the rows after each write since the durable point of that number. A new segment
begins at each snapshot, and those before a durable point are deleted (FORMAT.md, "Log"). A write is logged under its
variable's lock, in the order of writes; commit() is called without it, and concurrent callers share one fsync. The head
of a segment has the number of the last synced entry, written without its own sync, so that lost entries can be
distinguished from a torn tail. Thread-safe.
"""

from __future__ import annotations

import os
import threading
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path

from kvemb import fresh_files
from kvemb.errors import ColdStoreError
from kvemb.journal.segment_files import (
    CHECKSUM,
    CLEARED,
    CONTINUED,
    COUNTED,
    ENTRY,
    HEAD,
    MAGIC,
    MARK,
    NUMBER,
    REMOVED,
    ROWS,
    VERSION,
    delete_before,
    note,
    segment_name,
)
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered, pack_rows
from kvemb.threads.interrupts import uninterrupted


class Journal:
    """The log of an open store. number: of the durable point that it follows."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self._lock = threading.Lock()  # guards all except _synced
        self._syncing = threading.Lock()  # guards _synced; taken before _lock
        self._appended = self._synced = 0
        self._failure: ColdStoreError | None = None
        # The failure while an entry is written: another thread's exception may come at any place, and nothing may
        # follow an entry that is torn or not counted.
        self._interrupted = ColdStoreError(f"the log in {directory} was interrupted")
        # A file and the number of its segment: those with entries that may not be synced, and the next one.
        self._unsynced: list[tuple[int, int]] = []
        self._next: tuple[int, int] | None = None
        try:
            fresh_files.make_directory(directory)
        except OSError as error:
            raise ColdStoreError(f"cannot create {directory}: {error}") from error
        self._file, self._number = self._new_segment(number), number
        self._before = 0  # entries before this segment

    # A write of one variable. step: of its tiers. These methods raise ColdStoreError, and then on every later call.

    def rows(self, variable: str, rows: RowBlock, step: int) -> None:
        """Log that these rows were written."""
        if len(rows):
            self._append(ROWS, variable, len(rows), step, pack_rows(rows))

    def removed(self, variable: str, keys: Ordered, step: int) -> None:
        """Log that the rows of these keys (codec.order_keys) were removed."""
        if len(keys):
            self._append(REMOVED, variable, len(keys), step, keys.astype("<u8").tobytes())

    def cleared(self, variable: str, step: int) -> None:
        """Log that every row was removed."""
        self._append(CLEARED, variable, 0, step, b"")

    def counted(self, variable: str, optimizer_steps: int, step: int) -> None:
        """Log the number of steps that the optimizer has taken."""
        self._append(COUNTED, variable, 0, step, NUMBER.pack(optimizer_steps))

    def _append(self, kind: int, variable: str, rows: int, step: int, payload: bytes) -> None:
        with uninterrupted(), self._lock:
            self._check()
            self._failure = self._interrupted
            self._append_locked(kind, variable.encode(), rows, step, payload)
            self._failure = None

    def _append_locked(self, kind: int, name: bytes, rows: int, step: int, payload: bytes) -> None:
        number = self._appended + 1
        head = ENTRY.pack(MARK, kind, len(name), rows, len(payload), number, self._synced, step)
        checksum = zlib.crc32(payload, zlib.crc32(name, zlib.crc32(head)))
        try:
            _write(self._file, b"".join((head, name, payload, CHECKSUM.pack(checksum))))
        except OSError as error:
            raise self._failed(error) from error
        self._appended = number

    def commit(self) -> None:
        """Wait until all that was appended so far is on disk. Raises ColdStoreError, and on every later call."""
        with uninterrupted(), self._lock:
            self._check()  # the call's own entry may be the one that could not be appended
            wanted = self._appended
        with uninterrupted(), self._syncing:
            if self._synced >= wanted:
                return
            with uninterrupted(), self._lock:
                self._check()
                appended, current = self._appended, self._file
                before = [file for file, _ in self._unsynced]
                noted = note(self._before, appended)
            try:
                for file in (*before, current):
                    os.fdatasync(file)
            except OSError as error:
                with uninterrupted(), self._lock:
                    raise self._failed(error) from error
            # Only now: if this thread is interrupted above, the next commit syncs them.
            with uninterrupted(), self._lock:
                del self._unsynced[: len(before)]
            self._synced = appended
            with suppress(OSError):  # without it only the detection of later damage is weaker
                os.pwrite(current, noted, HEAD.size)
            for file in before:
                os.close(file)

    def prepare(self, number: int) -> None:
        """Create the segment that will follow the durable point of this number. Raises ColdStoreError."""
        with uninterrupted(), self._lock:
            unused, self._next = self._next, None
        if unused is not None:
            os.close(unused[0])
            (self._directory / segment_name(unused[1])).unlink(missing_ok=True)
        self._next = self._new_segment(number), number

    def rotate(self) -> None:
        """End the current segment with the next one's number, and switch to that. Raises ColdStoreError.

        After a failure the current segment is left as it is. If the process ends before the next durable point, it is
        as if it had crashed in the middle of a write.
        """
        with uninterrupted(), self._lock:
            assert self._next is not None
            failure, following = self._failure, self._next
            file, number = following
            unsynced, ended = self._unsynced, (self._file, self._number)
            # If this fails, prepare() must not delete the segment, which an entry may name; delete_before() closes it.
            self._next, self._unsynced, self._failure = None, [*unsynced, following], failure or self._interrupted
            if failure is None:
                self._append_locked(CONTINUED, b"", 0, 0, NUMBER.pack(number))
            try:
                os.pwrite(file, note(self._appended, self._synced), HEAD.size)
            except OSError as error:
                raise self._failed(error) from error
            self._unsynced, self._file, self._number = [*unsynced, ended], file, number
            self._before, self._failure = self._appended, failure

    def fail(self, error: Exception) -> None:
        """Let every commit() from now on raise ColdStoreError, because a write could not be logged."""
        with uninterrupted(), self._lock:
            if self._failure is None or self._failure is self._interrupted:
                self._failed(error)

    def resume(self) -> None:
        """Take entries again after a failure. REQUIRES: the durable point that the current segment follows exists."""
        with uninterrupted(), self._lock:
            self._failure = None

    def delete_before(self, number: int) -> None:
        """Delete the segments before the durable point of this number, which has all of their writes."""
        with uninterrupted(), self._syncing, self._lock:
            for file, _ in (ended := [each for each in self._unsynced if each[1] < number]):
                os.close(file)
            self._unsynced = [each for each in self._unsynced if each not in ended]
        delete_before(self._directory, number)

    def close(self) -> None:
        """Sync the log, if the disk allows it, and close its files."""
        with suppress(ColdStoreError, OSError):
            self.commit()
            os.fsync(self._file)
        with uninterrupted(), self._syncing, self._lock:
            following = [] if self._next is None else [self._next]
            for file, _ in (*self._unsynced, (self._file, self._number), *following):
                os.close(file)

    def _new_segment(self, number: int) -> int:
        path = self._directory / segment_name(number)
        with ExitStack() as undo:
            try:
                path.unlink(missing_ok=True)
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                undo.callback(os.close, file)
                _write(file, HEAD.pack(MAGIC, VERSION) + note(0, 0))
                os.fsync(file)
                fresh_files.sync_directory(self._directory)
            except OSError as error:
                raise ColdStoreError(f"cannot write {path}: {error}") from error
            undo.pop_all()
        return file

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _failed(self, error: Exception) -> ColdStoreError:
        # After a failed fsync it is unknown what reached the disk, and entries after a torn one cannot be read.
        said = f"cannot write the log in {self._directory}: {str(error) or repr(error)}"
        self._failure = ColdStoreError(error.errno, said) if isinstance(error, OSError) else ColdStoreError(said)
        self._failure.__cause__ = error
        return self._failure


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
