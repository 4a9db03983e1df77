"""Changes to a copy of a database that is not open: families are dropped, and sorted files added.

Opening a copy only for that would read and write the options of each family, and sync three files for each that is
ingested; rocksdict would hold the GIL meanwhile. So edits are appended to the copy's MANIFEST, RocksDB's log of its
families and files. RocksDB goes on reading the edits of all its earlier versions (its db/version_edit.h).
"""

from __future__ import annotations

import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from kvemb.backends.rocks_log import framed, number, numbers, records, sized
from kvemb.backends.rocks_scan import translated
from kvemb.contracts import SortedFile
from kvemb.errors import Corruption, UnsupportedFormat

# Tags of an edit. On disk; do not renumber.
COMPARATOR, NEXT_FILE, LAST_SEQUENCE, DELETED_FILE, NEW_FILE = 1, 3, 4, 6, 103
FAMILY, FAMILY_ADDED, FAMILY_DROPPED = 200, 201, 202
# Those that one number follows. A length and as many bytes follow a comparator, and each tag with the bit _SIZED, which
# a RocksDB that does not know it leaves out.
_NUMBERS, _SIZED = {2, NEXT_FILE, LAST_SEQUENCE, 9, 10, FAMILY, 203, 300}, 1 << 13
_END, _EPOCH = 1, 13  # tags of a new file
# Kinds of entries. Of two of one key and sequence number a value comes before a deletion.
_VALUE, _DELETION = 1, 0
_CURRENT = re.compile(rb"MANIFEST-[0-9]{6,20}\n")
_NUMBERED = re.compile(r"(?:MANIFEST-|OPTIONS-)?([0-9]{1,20})(?:\.[a-z]+)?")


def amend(path: Path, drop: Iterable[str], added: Iterable[tuple[str, SortedFile]]) -> None:
    """See contracts.ColdDatabase.amend."""
    amendment = _Amendment(path)
    for name in drop:
        amendment.drop(name)
    for name, file in added:
        amendment.ingest(name, file)
    amendment.finish()


class _Amendment:
    """Edits of a copy, which is read at the first one, and complete after finish()."""

    def __init__(self, path: Path) -> None:
        self._path, self._edits = path, list[bytes]()

    @cached_property
    def _copy(self) -> _Copy:
        return _Copy(self._path)

    def drop(self, name: str) -> None:
        """Drop a family, and delete its files."""
        with translated(f"drop {name!r} from {self._path}"):
            copy, family = self._copy, self._copy.family(name)
            self._edits.append(numbers(FAMILY, family, FAMILY_DROPPED))
            for file in copy.files[family]:
                copy.path_of(file).unlink(missing_ok=True)
            del copy.families[name]

    def ingest(self, name: str, file: SortedFile) -> None:
        """Add a file to a family.

        All rows of the file get one new sequence number. Files of level 0 are ordered by their epochs. RocksDB begins
        an epoch of a family only with a new file, so no epoch is above the last number of a file.
        """
        with translated(f"ingest {file.path} into {self._path}"):
            copy, family = self._copy, self._copy.family(name)
            copy.last_sequence, copy.last_file = copy.last_sequence + 1, copy.last_file + 1
            moved = copy.path_of(copy.last_file)
            os.rename(file.path, moved)
            edit = numbers(NEXT_FILE, copy.last_file + 1, LAST_SEQUENCE, copy.last_sequence, FAMILY, family)
            edit += numbers(NEW_FILE, 0, copy.last_file, moved.stat().st_size)  # 0: the level
            for key, kind in ((file.first, _VALUE), (file.last, _DELETION)):
                bound = key + struct.pack("<Q", copy.last_sequence << 8 | kind)
                edit += numbers(len(bound)) + bound
            epoch = numbers(copy.last_file)
            edit += numbers(copy.last_sequence, copy.last_sequence, _EPOCH, len(epoch)) + epoch + numbers(_END)
            self._edits.append(edit)

    def finish(self) -> None:
        """Write the edits."""
        if not self._edits:
            return
        with translated(f"write {self._copy.manifest}"), open(self._copy.manifest, "ab") as file:
            for edit in self._edits:
                file.write(framed(edit, file.tell()))
            file.flush()
            os.fsync(file.fileno())


class _Copy:
    """A database, as its MANIFEST describes it. last_file: a number that no file has exceeded, in use or deleted.

    Raises Corruption, UnsupportedFormat, OSError.
    """

    def __init__(self, rows: Path) -> None:
        self._rows = rows
        with open(rows / "CURRENT", "rb") as file:
            named = file.read(64)
        if _CURRENT.fullmatch(named) is None:
            raise Corruption(
                f"{rows / 'CURRENT'} is damaged: it must name a MANIFEST, got {named!r}; use another checkpoint"
            )
        self.manifest = rows / named[:-1].decode()
        with self._parsing():
            self._records = list(records(self.manifest.read_bytes()))
            self.families = self._read_families()
            self.last_sequence, next_file = self._read_last()
        numbered = (_NUMBERED.fullmatch(path.name) for path in rows.iterdir())
        self.last_file = max(next_file - 1, *(int(found[1]) for found in numbered if found is not None))

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{self.manifest} {error}; use the kvemb that wrote it") from error
        except (ValueError, IndexError) as error:
            raise Corruption(f"{self.manifest} is damaged: {error}; use another checkpoint") from error

    def _read_families(self) -> dict[str, int]:
        """Return the numbers of the families by name. Edits of files are not parsed: there may be 30,000."""
        added, dropped, names = numbers(FAMILY_ADDED), numbers(FAMILY_DROPPED), dict[int, str]()
        for record in self._records:
            if added in record or dropped in record:
                edit = _Edit(record)
                if edit.added is not None:
                    names[edit.family] = edit.added
                elif edit.dropped:
                    names.pop(edit.family, None)
        return {name: family for family, name in names.items()}

    def _read_last(self) -> tuple[int, int]:
        """Return the last sequence number, and the next number of a file. RocksDB puts both into an edit of files."""
        for edit in map(_Edit, reversed(self._records)):
            if edit.last_sequence is not None and edit.next_file is not None:
                return edit.last_sequence, edit.next_file
        raise ValueError("it has no number of a file")

    def family(self, name: str) -> int:
        """Return the number of a family."""
        if name not in self.families:
            raise Corruption(f"{self.manifest} is damaged: it has no {name!r}; use another checkpoint")
        return self.families[name]

    @cached_property
    def files(self) -> defaultdict[int, set[int]]:
        """The numbers of each family's table files."""
        files = defaultdict[int, set[int]](set)
        with self._parsing():
            for edit in map(_Edit, self._records):
                files[edit.family] = files[edit.family] - edit.deleted_files | edit.new_files
        return files

    def path_of(self, file: int) -> Path:
        """Return the path of a table file."""
        return self._rows / f"{file:06d}.sst"


class _Edit:
    """One edit of a MANIFEST: the family that it is about. Raises UnsupportedFormat, ValueError, IndexError."""

    def __init__(self, record: bytes) -> None:
        self.family, self.dropped = 0, False
        self.added: str | None = None  # the name of a new family
        self.last_sequence: int | None = None
        self.next_file: int | None = None
        self.new_files, self.deleted_files = set[int](), set[int]()
        at = 0
        while at < len(record):
            tag, at = number(record, at)
            at = self._take(tag, record, at)

    def _take(self, tag: int, record: bytes, at: int) -> int:
        """Take what follows a tag; returns where it ends."""
        if tag in _NUMBERS:
            value, at = number(record, at)
            self.family = value if tag == FAMILY else self.family
            self.last_sequence = value if tag == LAST_SEQUENCE else self.last_sequence
            self.next_file = value if tag == NEXT_FILE else self.next_file
        elif tag == NEW_FILE:
            _, at = number(record, at)  # its level
            file, at = number(record, at)
            self.new_files.add(file)
            at = _end_of_file(record, at)
        elif tag == DELETED_FILE:
            _, at = number(record, at)  # its level
            file, at = number(record, at)
            self.deleted_files.add(file)
        elif tag in (COMPARATOR, FAMILY_ADDED) or tag & _SIZED:
            text, at = sized(record, at)
            self.added = text.decode() if tag == FAMILY_ADDED else self.added
        elif tag == FAMILY_DROPPED:
            self.dropped = True
        else:
            raise UnsupportedFormat(f"has the tag {tag}, which this kvemb does not know")
        return at


def _end_of_file(record: bytes, at: int) -> int:
    """Return where a new file ends: after its bytes, its bounds, its first and last sequence number, and its tags."""
    _, at = number(record, at)
    for read in (sized, sized, number, number):
        _, at = read(record, at)
    while True:
        tag, at = number(record, at)
        if tag == _END:
            return at
        _, at = sized(record, at)
