"""The marks of a store on disk: a small file for each in marks/, which says which durable point is kept for it.

A file is written after its point is complete, and deleted before its point. A point that no file names, and that is not
the current one, is deleted with the next one. FORMAT.md, "A store", specifies the bytes. Thread-safe.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakValueDictionary

from kvemb import fresh_files
from kvemb.checks.brief import brief
from kvemb.checks.fields import OMITTED, Id, as_json, integer, number, read, text
from kvemb.checks.ranges import END_OF_TIME, MAX_POINTS
from kvemb.durability import layout, manifest
from kvemb.durability.marks.mark import Mark
from kvemb.errors import Corruption, MarkNotFound, UnsupportedFormat
from kvemb.options import format_time
from kvemb.threads.interrupts import uninterrupted

FORMAT = 1  # on disk
SUFFIX, TEMPORARY = ".json", ".tmp"
MAX_NAME, MAX_BYTES = 200, 1 << 16
# How many marks without a name a store keeps, unless it is opened with keep_marks=.
KEEP_MARKS, MAX_MARKS = 16, 10**6
_logger = logging.getLogger("kvemb")


@dataclass(frozen=True)
class _Entry:
    """A mark's file. point: the number of its durable point. number: larger in a later mark."""

    store: Id
    id: Id
    point: Annotated[int, integer(1, MAX_POINTS)]
    number: Annotated[int, integer(1, MAX_POINTS)]
    created: Annotated[float, number(0, END_OF_TIME)]
    name: Annotated[str, OMITTED, text(r".{0,200}", "at most 200 characters")] = ""


def read_marks(store: Path) -> list[Mark]:
    """Return the marks of a store, the oldest first. Raises Corruption, UnsupportedFormat, naming a file."""
    return [_mark(store, entry) for entry in _read_all(store / layout.MARKS)]


class Hold:
    """As long as one lives, its mark is kept, however many others are made. A copy is the same hold."""

    def __copy__(self) -> Hold:
        return self

    def __deepcopy__(self, memo: object) -> Hold:
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """In a file it holds nothing. torch.load(weights_only=True) reads this type, and none of kvemb's."""
        return OrderedDict, ()


class Marks:
    """The marks of a store that is open for writing.

    most: how many without a name are kept, the newest ones, beside those that are held.
    """

    def __init__(self, store: Path, most: int) -> None:
        self._store, self._most, self._lock = store, most, threading.Lock()
        self._holds: WeakValueDictionary[str, Hold] = WeakValueDictionary()
        self._told = False
        self._entries = {entry.id: entry for entry in _read_all(store / layout.MARKS)}
        for left in (store / layout.MARKS).glob(f"*{TEMPORARY}"):
            left.unlink()

    def all(self) -> list[Mark]:
        """Return all marks, the oldest first."""
        with uninterrupted(), self._lock:
            return [_mark(self._store, entry) for entry in self._entries.values()]

    def points(self) -> set[int]:
        """Return the numbers of the durable points that are kept."""
        with uninterrupted(), self._lock:
            return {entry.point for entry in self._entries.values()}

    def find(self, given: Mark | str, identity: str) -> Mark:
        """Return the mark of this value or name. identity: the store's. Raises MarkNotFound, TypeError."""
        if not isinstance(given, (Mark, str)):
            raise TypeError(f"a mark must be a kvemb.Mark, or the name of one, got {brief(given)}")
        if isinstance(given, Mark) and given.store != identity:
            raise MarkNotFound(
                f"{_told(given)} is of the store {given.store}, but {self._store} is the store {identity}; go back to "
                "a mark of this store, or open that one"
            )
        known = self.all()
        for mark in reversed(known):  # of two with one name, left by a crash in keep(), the newer
            if given == mark or (mark.name is not None and given == mark.name):
                return mark
        names = ", ".join(repr(mark.name) for mark in known if mark.name is not None) or "none with a name"
        what = _told(given) if isinstance(given, Mark) else f"the mark {brief(given)}"
        raise MarkNotFound(
            f"{self._store} does not have {what} any more, or never had it: it was dropped, or was never complete, or "
            f"more than keep_marks={self._most} marks without a name were made after it. It has {len(known)} marks, "
            f"{names}. Give marks that you need later a name, or open the store with a larger keep_marks="
        )

    def hold(self, mark: str) -> Hold:
        """Return what keeps the mark with this id."""
        with uninterrupted(), self._lock:
            hold = self._holds.get(mark) or Hold()
            self._holds[mark] = hold
            return hold

    def new(self, name: str | None, identity: str, point: int) -> Mark:
        """Return a mark that is not on disk yet. point: the number of its durable point."""
        return Mark(uuid.uuid4().hex, identity, name, manifest.created_now(), layout.point(self._store, point))

    def keep(self, mark: Mark) -> None:
        """Write a mark's file: from now on its durable point, which is complete, is kept. Raises ColdStoreError.

        It replaces a mark of the same name. Beyond the marks without a name that are kept, the oldest that nothing
        holds are dropped.
        """
        with uninterrupted(), self._lock:
            last = max((entry.number for entry in self._entries.values()), default=0)
            entry = _Entry(mark.store, mark.id, int(mark.path.name), last + 1, mark.created, mark.name or "")
            folder = self._store / layout.MARKS
            with layout.as_cold_store_error(f"write {folder}"):
                fresh_files.make_directory(folder)
                data = {"format": FORMAT, **as_json(entry)}
                whole = {"checksum": manifest.checksum_of(data), **data}
                _write(folder / (mark.id + SUFFIX), (json.dumps(whole, indent=1) + "\n").encode())
            replaced = [each.id for each in self._entries.values() if entry.name and each.name == entry.name]
            self._entries[mark.id] = entry
            unnamed = [each for each in self._entries.values() if not each.name and each.id not in self._holds]
            dropped = unnamed[: max(0, len(unnamed) - self._most)]
            self._drop([*replaced, *(each.id for each in dropped)])
        if dropped and not self._told:
            self._told = True
            _logger.warning(
                "%s does not keep its mark of %s any more, and will drop others: it keeps the newest %d without a "
                "name. A state_dict in a file that was saved then cannot be loaded; to keep more, open the store with "
                "keep_marks=",
                self._store,
                format_time(dropped[0].created),
                self._most,
            )

    def drop(self, mark: Mark) -> None:
        """Delete a mark's file; the caller then deletes its durable point. Raises ColdStoreError."""
        with uninterrupted(), self._lock:
            self._drop([mark.id])

    def _drop(self, ids: list[str]) -> None:
        folder = self._store / layout.MARKS
        with layout.as_cold_store_error(f"delete marks in {folder}"):
            for each in ids:
                if each in self._entries:
                    (folder / (each + SUFFIX)).unlink(missing_ok=True)
                    del self._entries[each]
            if ids:
                fresh_files.sync_directory(folder)


def check_name(name: object) -> str | None:
    """Return the name of a mark, None for none. Raises TypeError, ValueError."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"the name of a mark must be a str or None, got {brief(name)}")
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ValueError(f"the name of a mark must have 1 to {MAX_NAME} printable characters, got {brief(name)}")
    return name


def _mark(store: Path, entry: _Entry) -> Mark:
    return Mark(entry.id, entry.store, entry.name or None, entry.created, layout.point(store, entry.point))


def _write(path: Path, data: bytes) -> None:
    """Write a new file that is whole or not there. Raises OSError; then it is not there."""
    try:
        fresh_files.replace(path, data, path.with_suffix(TEMPORARY))
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
            fresh_files.sync_directory(path.parent)
        raise


def _told(mark: Mark) -> str:
    return f"the mark {brief(mark.name)}" if mark.name is not None else f"the mark of {format_time(mark.created)}"


def _read_all(folder: Path) -> list[_Entry]:
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []:
        with suppress(FileNotFoundError):  # the store's owner dropped it since it was listed
            found.append(_read(path))
    return sorted(found, key=lambda entry: entry.number)


def _read(path: Path) -> _Entry:
    advice = "it says which durable point is kept; move it out of the store to open the store without that mark"
    try:
        with open(path, "rb") as file:
            data: dict[str, Any] = json.loads(file.read(MAX_BYTES).decode())
        version, checksum = data.pop("format"), data.pop("checksum")
        if version != FORMAT:
            raise UnsupportedFormat(f"{path} has format {brief(version)}, this kvemb reads {FORMAT}")
        if checksum != manifest.checksum_of({"format": version, **data}):
            raise ValueError("its checksum is wrong")
        entry = read(_Entry, data)
        if entry.id + SUFFIX != path.name:
            raise ValueError(f"it is the mark {entry.id}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UnsupportedFormat):
            raise
        raise Corruption(f"{path} is damaged: {error}; {advice}") from error
    return entry
