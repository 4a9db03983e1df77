"""The manifest of a checkpoint: its identity, its variables, and its files with their checksums.

One JSON file, `manifest.json`, next to the rows (FORMAT.md, "Manifest"). Pure values, except read() and write().
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from kvemb import fresh_files
from kvemb.checks.brief import brief
from kvemb.checks.fields import OMITTED, Id, Refused, Sha256, array, as_json, integer, number, shown, text
from kvemb.checks.fields import read as read_fields
from kvemb.checks.names import FilePath, Name
from kvemb.checks.ranges import END_OF_TIME, MAX_FILE_BYTES, MAX_POINTS, MAX_ROWS
from kvemb.durability.admission_counters.counter_file import CounterFile
from kvemb.durability.variable_entry import VariableEntry, check_variable, with_widths
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat

FORMAT = 5  # on disk; do not renumber. 4 is used by another object at a URL (kvemb.offline.chain)
# Formats that can be read. In format 2 a slot is only a name, and as wide as the embedding; before 5, nothing is
# attached.
READABLE = (2, 3, FORMAT)
# Of a cluster's manifest (kvemb.cluster.durability.manifest), which names manifests of this module.
CLUSTER_FORMAT = 7
NAME = "manifest.json"
MAX_CHARACTERS = 256 << 20  # of a manifest: a million files
# The only paths that a manifest may list, so that pulling, restoring and opening a checkpoint never overwrite a file
# that kvemb or RocksDB writes itself.
ATTACHED = r"files/[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,199}"
_FILE = re.compile(
    r"rows/([0-9]+\.(sst|blob|log)|(MANIFEST|OPTIONS)-[0-9]+|CURRENT|IDENTITY|rocksdict-config\.json)"
    rf"|changes/[0-9]{{1,18}}\.keys|hot/[0-9-]+\.keys|sightings/[0-9-]+\.counts|{ATTACHED}"
)


_KeyFile = Annotated[str, text(r"[0-9]{6,18}\.keys", "a name such as '000007.keys'")]
_HotFile = Annotated[str, text(r"[0-9]{6,18}-[0-9]{3,18}\.keys", "a name such as '000007-000.keys'")]
_Place = Annotated[str, text(r"host|gpu:[0-9]{1,4}", "'host' or names such as 'gpu:0'")]


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint."""

    bytes: Annotated[int, integer(0, MAX_FILE_BYTES)]
    sha256: Sha256


@dataclass(frozen=True)
class HotRows:
    """Rows of a variable that were hot in one memory, and the bytes of all its cells there."""

    rows: Annotated[int, integer(0, MAX_ROWS)]
    bytes: Annotated[int, integer(0, MAX_FILE_BYTES)]


@dataclass
class EpochChanges:
    """The changes of one variable in one epoch. cleared: all rows were removed first. files: key files in changes/.
    dropped: the variable was dropped with its rows, or is no longer in checkpoints; cleared and files describe a later
    one of that name. left: it is no longer in checkpoints, but was not dropped.
    """

    cleared: bool = False
    files: list[_KeyFile] = field(default_factory=list)
    dropped: Annotated[bool, OMITTED] = False
    left: Annotated[bool, OMITTED] = False


@dataclass
class Epoch:
    """The time from one checkpoint, or the store's creation, to the next (kvemb.durability.changes).

    since: the id of that checkpoint, or of the store. includes: if this store was brought to that checkpoint by its
    delta: its id, after those of the checkpoints that were passed; if it was restored from it: empty; otherwise None.
    """

    since: Id
    variables: dict[Name, EpochChanges] = field(default_factory=dict)
    includes: Annotated[list[Id] | None, array(0, MAX_CHARACTERS), OMITTED] = None

    def copied(self) -> Epoch:
        """Return a copy that shares no list. copy.deepcopy would take many times as long, and leave garbage."""
        variables = {name: replace(changed, files=[*changed.files]) for name, changed in self.variables.items()}
        return Epoch(self.since, variables, None if self.includes is None else [*self.includes])


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint, or of a durable point, which is a checkpoint inside its store.

    store: the store's identity. id: this checkpoint's. parent: the checkpoint before it, None for the first.
    point: the number of the durable point of its store, counted from 1. created: seconds since 1970.
    hot: by variable, the key files in hot/ that say which rows were hot (kvemb.durability.hotset). changes: which keys
    changed since which checkpoint, oldest first. files: by path below the directory, all except the manifest itself.
    left_out: names of variables that a restore did not take, and that later deltas leave out. extra: what the caller
    attached, JSON (kvemb.durability.attachments). tiers: for each variable with rows hot on a GPU, what was hot in each
    memory, "gpu:0" or "host". sightings: by variable, for those with an Admission that counted any.
    """

    store: Id
    id: Id
    parent: Id | None
    point: Annotated[int, integer(1, MAX_POINTS)]
    created: Annotated[float, number(0, END_OF_TIME)]
    variables: dict[Name, VariableEntry] = field(default_factory=dict)
    hot: dict[Name, list[_HotFile]] = field(default_factory=dict)
    # At least one; the text's length is the only limit.
    changes: Annotated[list[Epoch], array(1, MAX_CHARACTERS)] = field(default_factory=list)
    files: dict[FilePath, FileEntry] = field(default_factory=dict)
    left_out: Annotated[list[Name], OMITTED] = field(default_factory=list)
    extra: Annotated[dict[str, Any], OMITTED] = field(default_factory=dict)
    tiers: Annotated[dict[Name, dict[_Place, HotRows]], OMITTED] = field(default_factory=dict)
    sightings: Annotated[dict[Name, CounterFile], OMITTED] = field(default_factory=dict)

    def only(self, names: Collection[str]) -> Manifest:
        """Return the manifest of a checkpoint of some of the variables."""

        def some(of_all: dict[str, Any]) -> dict[str, Any]:
            return {name: of_all[name] for name in of_all if name in names}

        def kept(name: str, changed: EpochChanges) -> EpochChanges | None:
            if name in names or name not in self.variables:
                return changed
            return EpochChanges(True, [], True) if changed.dropped else None

        # Epochs keep dropped variables too, for deltas from checkpoints that have them.
        epochs = []
        for epoch in self.changes:
            listed = {name: kept(name, changed) for name, changed in epoch.variables.items()}
            epochs.append(replace(epoch, variables={name: changed for name, changed in listed.items() if changed}))
        own: dict[str, Any] = {name: some(getattr(self, name)) for name in ("hot", "tiers", "sightings")}
        return replace(self, variables=some(self.variables), changes=epochs, **own)

    def following(self, checkpoint: str, *, restored: bool = False) -> Manifest:
        """Return a manifest of the same state whose parent is that checkpoint, with a new epoch.

        restored: whether a store is restored from the checkpoint; otherwise it is the store's own.
        """
        epoch = Epoch(checkpoint, includes=[] if restored else None)
        return replace(self, parent=checkpoint, changes=[*self.changes, epoch])

    @property
    def named_files(self) -> set[str]:
        """The paths, below the directory, of the files that its fields name: key files and counter files."""
        changed = {file for epoch in self.changes for change in epoch.variables.values() for file in change.files}
        hot = {f"hot/{file}" for files in self.hot.values() for file in files}
        counted = {f"sightings/{each.file}" for each in self.sightings.values()}
        return {f"changes/{file}" for file in changed} | hot | counted

    @property
    def attached(self) -> set[str]:
        """The paths, below the directory, of the files that the caller attached."""
        return {name for name in self.files if name.startswith("files/")}


def created_now() -> float:
    """Return the time for a manifest's `created`: that of the clock, if it is between 1970 and the year 10000.

    Otherwise the nearest such time: a wrong clock must not make a point that no opening accepts.
    """
    return min(max(time.time(), 0.0), END_OF_TIME - 1.0)


def write(manifest: Manifest, directory: Path) -> None:
    """Write directory/manifest.json and wait until it is on disk."""
    fresh_files.write_new(directory / NAME, text_of(data_of(manifest)).encode())


def text_of(data: dict[str, Any]) -> str:
    """Return the text of a manifest. Each variable and each file has a line; json indents lines with slow Python."""
    return _indented(data, levels=2) + "\n"


def _indented(value: Any, levels: int, line: str = "\n ") -> str:
    if not (levels and isinstance(value, dict) and value):
        return json.dumps(value, default=as_json)
    entries = (f"{json.dumps(name)}: {_indented(entry, levels - 1, line + ' ')}" for name, entry in value.items())
    return "{" + line + ("," + line).join(entries) + line[:-1] + "}"


def data_of(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest for text_of, checksum included; parse() reads the text."""
    data = {"format": FORMAT, **as_json(manifest)}
    return {"checksum": checksum_of(data), **data}


def read(directory: Path, *, max_characters: int = MAX_CHARACTERS) -> Manifest:
    """Read directory/manifest.json. Raises CheckpointNotFound, UnsupportedFormat or Corruption, naming the file."""
    path = directory / NAME
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(max_characters + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFound(f"there is no checkpoint at {directory}: it has no {NAME}") from error
    except ValueError as error:
        raise Corruption(f"{path} is damaged: {error!r}; restore from another checkpoint") from error
    return parse(text, str(path), max_characters=max_characters)


def parse(text: str, path: str, *, max_characters: int = MAX_CHARACTERS) -> Manifest:
    """Parse a manifest. path: its name in errors. Raises UnsupportedFormat or Corruption."""
    try:
        if len(text) > max_characters:
            raise ValueError(f"it is longer than {max_characters:,} characters")
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        if "format" not in data:
            raise ValueError("it has no format")
        version = data["format"]
    except (ValueError, RecursionError) as error:
        raise Corruption(f"{path} is damaged: {error}; restore from another checkpoint") from error
    if version == CLUSTER_FORMAT:
        raise UnsupportedFormat(f"{path} is a cluster's checkpoint; use kvemb.restore to make one store of it")
    if type(version) is not int or version not in READABLE:
        raise UnsupportedFormat(
            f"{path} has format {brief(version)}, this kvemb reads formats {', '.join(map(str, READABLE))}; "
            "use the kvemb that wrote it"
        )
    try:
        if not text.endswith("}\n"):
            raise ValueError("it ends early")
        if data.pop("checksum") != checksum_of(data):
            raise ValueError("its checksum is wrong")
        del data["format"]
        manifest = read_fields(Manifest, _as_newest(data, version))
        for name, entry in manifest.variables.items():
            check_variable(entry, f"variables.{shown(name)}.")
        if strange := [name for name in manifest.files if not _is_listed(name, version)]:
            raise ValueError(f"it lists {brief(strange[0])}, which is no file of a checkpoint")
        if missing := manifest.named_files - set(manifest.files):
            raise ValueError(f"it names {min(missing)} but does not list it in files")
        return manifest
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error}") from error
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise Corruption(f"{path} is damaged: {reason}; restore from another checkpoint") from error


def _is_listed(name: str, version: int) -> bool:
    """Whether a manifest of that format may list a file."""
    return _FILE.fullmatch(name) is not None and (version >= 5 or not name.startswith(("files/", "sightings/")))


def checksum_of(data: dict[str, Any]) -> str:
    """Return the sha256 of an object's other fields, as compact JSON with sorted names."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":"), default=as_json).encode()).hexdigest()


def _as_newest(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the fields of a manifest of an older format as those of FORMAT. Raises for fields that it did not have."""
    if version == FORMAT:
        return data
    entries = data["variables"]
    newer = {"extra", "tiers", "sightings"} & data.keys()
    newer |= {"optimizer_steps", "max_rows", "ttl", "ages"} & set().union(*entries.values())
    if newer:
        raise Refused("is not a field that this kvemb knows", min(newer))
    return (
        {**data, "variables": {name: with_widths(entry) for name, entry in entries.items()}} if version == 2 else data
    )
