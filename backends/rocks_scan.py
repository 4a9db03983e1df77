"""Scans of one column family, and the translation of RocksDB's errors into kvemb's. Imports no rocksdict."""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

from kvemb.backends.rocks_forks import keep_in_forks
from kvemb.checks import open_file_limit
from kvemb.errors import Closed, ColdStoreError, Corruption, KvembError
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import decode_rows
from kvemb.rows.schema import Schema
from kvemb.threads.interrupts import uninterrupted
from kvemb.threads.native import native_code


class translated(native_code):  # noqa: N801 -- as contextlib.suppress
    """A block that translates rocksdict's errors, which are plain Exceptions, into kvemb's.

    what: the operation, for messages.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if error is None or isinstance(error, (KvembError, StopIteration)) or not isinstance(error, Exception):
            return
        # A database that is read in place is opened through links: name the files that they lead to.
        text = re.sub(r"/\S+/[\w.-]+", lambda path: os.path.realpath(path[0]), str(error))
        # Column families that the database's manifest does not name are damage, too, not a failure of the disk.
        damage = text.startswith(("Corruption", "Result incomplete")) or "checksum mismatch" in text
        damage = damage or "larger than file length" in text  # a truncated file that is mapped
        if damage or "Column families not opened" in text:
            raise Corruption(f"{self._what}: {text}; run kvemb verify --deep, and restore from a checkpoint") from error
        raise ColdStoreError(f"{self._what}: {text}{open_file_limit.advice(text)}") from error


class Scan(Iterator[RowBlock]):
    """The rows of one snapshot, in batches. It keeps the database open, so closing the store closes its scans first.

    items: pairs from the first key on. check: an iterator of the same snapshot, which shows at the end whether `items`
    stopped because of an error. bounds: the first and the last key, inclusive.
    """

    def __init__(
        self,
        name: str,
        schema: Schema,
        items: Iterator[Any],
        check: Any,
        batch_rows: int,
        bounds: tuple[bytes, bytes],
    ) -> None:
        self._name, self._schema, self._batch_rows = name, schema, batch_rows
        self._first_key, self._last_key = bounds
        self._items = items
        self._check: Any | None = check
        self._last: bytes | None = None
        self._closed = False
        keep_in_forks(self)
        self._lock = threading.Lock()

    def __next__(self) -> RowBlock:
        with uninterrupted(), self._lock, translated(f"scan {self._name!r}"):
            if self._closed:
                raise Closed(f"{self._name!r} was closed or dropped during this scan; open it, and scan again")
            batch = list(islice(self._items, self._batch_rows))
            if not batch and self._check is not None:
                self._raise_if_cut_short()
            if batch and batch[-1][0] > self._last_key:
                del batch[bisect_right(batch, self._last_key, key=itemgetter(0)) :]
                self._release()
            if not batch:
                self._release()
                raise StopIteration
        self._last = batch[-1][0]
        return decode_rows(batch, self._schema)

    def close(self) -> None:
        """End the scan, after waiting for a batch that is being read."""
        with uninterrupted(), self._lock:
            self._closed = self._check is not None
            self._release()

    def _release(self) -> None:
        self._check, self._items = None, iter(())

    def _raise_if_cut_short(self) -> None:
        """Raise if items() ended because of an error, which looks the same as its end after the last key."""
        # No local variables: a traceback keeps the frame alive, and an iterator keeps the database open.
        assert self._check is not None
        if self._last is None:
            self._check.seek(self._first_key)
        else:
            self._check.seek(self._last)
            if self._check.valid():
                self._check.next()
        self._check.status()
        if self._check.valid():
            raise Corruption(
                f"the scan ended after key {self._last!r} though more keys follow; run kvemb verify --deep"
            )
