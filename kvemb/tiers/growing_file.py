"""Writing the rows of a snapshot to sorted files that are much larger than the parts in which the rows are taken.

A file replaces rows of the cold store in use when it ends, so it must end before other rows of the variable are written
there: a row that was taken may have changed since, and have left the hot tier. Rows in a file that has not ended are
still dirty, so they are read from the hot tier or from the spill buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from kvemb.contracts import SortedFile
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys


class Ended(NamedTuple):
    """A file that the cold store in use has taken. parts: the keys of each part of its rows."""

    file: SortedFile
    parts: list[Keys]


class GrowingFile:
    """One sorted file after another. new_file, ingest: see DirtySnapshot.write. most_rows: rows in a file.

    REQUIRES: every method is called on the one thread that writes to the cold store.
    """

    def __init__(
        self, new_file: Callable[[], SortedFile], ingest: Callable[[SortedFile], None], most_rows: int
    ) -> None:
        self._new_file, self._ingest, self._most_rows = new_file, ingest, most_rows
        self._file: SortedFile | None = None
        self._parts: list[Keys] = []
        self._rows = 0
        self._ended: list[Ended] = []
        self._failure: Exception | None = None

    def add(self, keys: Keys, rows: RowBlock, *, last: bool) -> list[Ended]:
        """Add a part, whose keys follow those before. rows: of some of its keys. last: end the file then.

        Returns the files that have ended since the last call. Raises an error of this or an earlier call.
        """
        self._try(lambda: self._add(keys, rows, last))
        return self._take_ended()

    def end_early(self) -> None:
        """End the file, because other rows are about to be written. The next call raises the error if that fails."""
        with suppress(Exception):
            self._try(self._end)

    def _try(self, step: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            step()
        except Exception as error:
            self._failure, self._file = error, None  # a file that failed is never ingested
            raise

    def _add(self, keys: Keys, rows: RowBlock, last: bool) -> None:
        if len(rows):
            if self._file is None:
                self._file = self._new_file()
            self._file.append(rows)
            self._parts.append(keys)
            self._rows += len(rows)
        if last or self._rows + len(rows) > self._most_rows:
            self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file.finish()
            self._ingest(self._file)
            self._ended.append(Ended(self._file, self._parts))
            self._file, self._parts, self._rows = None, [], 0

    def _take_ended(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended
