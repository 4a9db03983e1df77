"""The description of one checkpoint at a URL: all of its files, or a base checkpoint and the deltas from it.

That of a whole checkpoint is its manifest.json. Otherwise it is an object of another format (FORMAT.md, "Remote") with
all deltas and the checkpoint's manifest, in which `files` has the key files of the checkpoint and the rows of the base.
So each description names everything that its checkpoint needs. Pure values and functions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

from kvemb.checks.fields import Id, Sha256, array, as_json, integer, read
from kvemb.checks.ranges import MAX_FILE_BYTES, MAX_SERIES
from kvemb.durability import layout, manifest
from kvemb.durability.layout import series_name
from kvemb.durability.manifest import FileEntry, Manifest
from kvemb.errors import Corruption

FORMAT = 4  # on disk: of an object that is not a manifest
MAX_DELTAS = 256


@dataclass(frozen=True)
class Delta:
    """A delta file: the number and the id of the checkpoint that it leads to, its size and checksum."""

    number: Annotated[int, integer(0, MAX_SERIES)]
    id: Id
    bytes: Annotated[int, integer(0, MAX_FILE_BYTES)]
    sha256: Sha256

    @property
    def file(self) -> FileEntry:
        """The size and checksum of the file."""
        return FileEntry(self.bytes, self.sha256)


@dataclass(frozen=True)
class Base:
    """The whole checkpoint that the first delta begins with."""

    number: Annotated[int, integer(0, MAX_SERIES)]
    id: Id


@dataclass(frozen=True)
class _Written:
    """The description of a checkpoint that is not whole, as JSON."""

    base: Base
    deltas: Annotated[tuple[Delta, ...], array(1, MAX_DELTAS)]
    manifest: dict[str, Any]


@dataclass(frozen=True)
class PushedCheckpoint:
    """One checkpoint at a URL. described: its manifest, with the files that are at the URL.

    base, deltas: if the checkpoint is not whole there; deltas from the oldest to the newest.
    """

    described: Manifest
    base: Base | None = None
    deltas: tuple[Delta, ...] = ()

    @property
    def ids(self) -> list[str]:
        """The ids of the base and of each delta's checkpoint; of a whole checkpoint, its own id."""
        return [self.described.id] if self.base is None else [self.base.id, *(delta.id for delta in self.deltas)]

    @property
    def files(self) -> dict[str, FileEntry]:
        """All files that the checkpoint needs, by checksum."""
        entries = [*self.described.files.values(), *(delta.file for delta in self.deltas)]
        return {entry.sha256: entry for entry in entries}

    @property
    def base_bytes(self) -> int:
        """The bytes of the base's rows."""
        return sum(entry.bytes for name, entry in self.described.files.items() if is_row_file(name))

    def followed_by(self, number: int, described: Manifest, delta: Delta) -> PushedCheckpoint:
        """Return the later checkpoint to which one more delta leads. number: of this one, the base if it is whole."""
        rows = {name: entry for name, entry in self.described.files.items() if is_row_file(name)}
        keys = {name: entry for name, entry in described.files.items() if not is_row_file(name)}
        base = self.base or Base(number, self.described.id)
        return PushedCheckpoint(replace(described, files={**rows, **keys}), base, (*self.deltas, delta))

    def name_of(self, sha256: str, number: int) -> str:
        """Return the name in messages of a file of the checkpoint with this number."""
        for delta in self.deltas:
            if delta.sha256 == sha256:
                return f"the delta of checkpoint {series_name(delta.number)}"
        name = next((name for name, entry in self.described.files.items() if entry.sha256 == sha256), "a file")
        owner = self.base.number if self.base is not None and is_row_file(name) else number
        return f"{name} of checkpoint {series_name(owner)}"


def is_row_file(name: str) -> bool:
    """Whether a path in a manifest is one of RocksDB's files."""
    return name.startswith(f"{layout.ROWS}/")


def text_of(pushed: PushedCheckpoint) -> bytes:
    """Return the text to write for a checkpoint that is not whole."""
    assert pushed.base is not None
    written = _Written(pushed.base, pushed.deltas, manifest.data_of(pushed.described))
    data = {"format": FORMAT, **as_json(written)}
    return manifest.text_of({"checksum": manifest.checksum_of(data), **data}).encode()


def check_owner(owner: str, store: str, newest: str, what: str) -> None:
    """Raise FileExistsError if a series belongs to another store. owner: the identity of its newest checkpoint's store.

    newest, what: names in the message, of that checkpoint and of what would be written.
    """
    if owner != store:
        raise FileExistsError(
            f"{newest}, the newest checkpoint of the series, is of the store with the id {owner}, and {what} of that "
            f"with the id {store}: name another place, or take the series over with take_over=True"
        )


def parse(text: str, where: str, *, max_characters: int) -> PushedCheckpoint:
    """Parse a checkpoint's description at a URL. where: its name in errors. Raises UnsupportedFormat, Corruption."""
    if (data := _chained(text, max_characters)) is None:
        return PushedCheckpoint(manifest.parse(text, where, max_characters=max_characters))
    try:
        if data.pop("checksum", None) != manifest.checksum_of(data):
            raise ValueError("its checksum is wrong")
        del data["format"]
        written = read(_Written, data)
        described = json.dumps(written.manifest) + "\n"
    except (ValueError, RecursionError) as error:
        raise Corruption(f"{where} is damaged: {error}; push it again") from error
    found = manifest.parse(described, where, max_characters=max_characters)
    pushed = PushedCheckpoint(found, written.base, written.deltas)
    if pushed.ids[-1] != pushed.described.id:
        raise Corruption(f"{where} is damaged: its last delta leads to another checkpoint; push it again")
    return pushed


def _chained(text: str, max_characters: int) -> dict[str, Any] | None:
    """Return the object if it has this module's format, otherwise None: manifest.parse handles everything else."""
    if len(text) > max_characters:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and type(data.get("format")) is int and data["format"] == FORMAT else None
