"""The column families of one RocksDB database, one for each variable.

RocksDB writes the options of all families, and reads them back, whenever a family is made; so making n families one by
one takes a time of n squared: seconds for 300. It makes any number at once while it opens a database.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import rocksdict as rd

from kvemb.threads.interrupts import uninterrupted

# From this number on, opening the database again costs less than making families one by one.
MANY = 4


class Families:
    """An open database and its families. As long as it has none, new ones are only named.

    They are made together when one of them is first needed. Thread-safe. existing: the options of its families. db: the
    database; another object once families were made.
    """

    def __init__(
        self, path: Path, options: rd.Options, existing: Mapping[str, rd.Options], access: rd.AccessType
    ) -> None:
        self._path, self._options, self._access = path, options, access
        self._new: dict[str, rd.Options] = {}
        self._any, self._failed = bool(existing), False
        self._lock = threading.Lock()
        self.db = self._open(existing)

    def create(self, name: str, options: rd.Options) -> None:
        """Add an empty family."""
        with uninterrupted(), self._lock:
            if self._any:
                self.db.create_column_family(name, options)
            else:
                self._new[name] = options

    def reopen(self, options: rd.Options, named: Mapping[str, rd.Options]) -> bool:
        """Open the database again with other options, unless it has families. named: all that were only named.

        Returns whether it was opened again.
        """
        with self._lock:
            if self._any:
                return False
            self._failed = True
            with suppress(rd.DbClosedError):  # it is closed if an earlier call failed
                self.db.close()
            self._options = options
            self.db = self._open({})
            self._new, self._failed = dict(named), False
            return True

    def made(self, name: str) -> bool:
        """Whether a family exists in the database. If not, it is new and has no rows."""
        return name not in self._new

    def make(self) -> None:
        """Make the families that were only named. No family is in use then, so the database may be opened again.

        If that fails, as on a full disk, they stay named, and the next call tries again.
        """
        with uninterrupted(), self._lock:
            self._make()

    def checkpoint(self, path: Path) -> None:
        """Write a native checkpoint of all families. Meanwhile none is made."""
        with uninterrupted(), self._lock:
            self._make()
            rd.Checkpoint(self.db).create_checkpoint(str(path))

    def _make(self) -> None:
        """Do what make() does. REQUIRES: the lock."""
        self._failed = True
        if len(self._new) < MANY:
            for name in list(self._new):
                if not self._exists(name):
                    self.db.create_column_family(name, self._new[name])
                del self._new[name]
                self._any = True
        else:
            with suppress(rd.DbClosedError):  # it is closed if an earlier call failed
                self.db.close()
            self._options.create_missing_column_families(True)
            self.db = self._open(self._new)
            self._new, self._any = {}, True
        self._failed = False

    def _exists(self, name: str) -> bool:
        """Whether an earlier call made a family, and was interrupted by an exception of another thread."""
        try:
            self.db.get_column_family(name)
        except Exception:
            return False
        return True

    def family(self, name: str) -> rd.Rdict:
        """Return the handle of a family, which is made if it is new."""
        if not self.made(name):
            self.make()
        return self.db.get_column_family(name)

    def drop(self, name: str) -> None:
        """Delete a family."""
        with uninterrupted(), self._lock:
            if name in self._new:
                del self._new[name]
            else:
                self.db.drop_column_family(name)

    def close(self) -> None:
        """Close the database, with all families made, unless that has failed. Its lock ends with the last handle."""
        try:
            if not self._failed:
                self.make()
        finally:
            with suppress(Exception):  # after a failed write RocksDB fails here again
                self.db.close()
            del self.db

    def _open(self, families: Mapping[str, rd.Options]) -> rd.Rdict:
        return rd.Rdict(str(self._path), self._options, dict(families), self._access)
