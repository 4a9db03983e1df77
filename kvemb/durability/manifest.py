"""The manifest of a checkpoint: its identity, its variables, and its files with their checksums.

One JSON file, `manifest.json`, next to the rows (FORMAT.md, "Manifest"). Pure values, except read() and write().
Longer than 300 lines: how a manifest becomes text, and how it is read again, are beside its fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvemb.checks.brief import brief
from kvemb.checks.fields import Fields
from kvemb.durability import fresh_files
from kvemb.durability.manifest_fields import check, check_variable
from kvemb.durability.sightings.counter_file import Counted
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.rows.schema import Schema, SlotShape, dtype_of

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


@dataclass(frozen=True)
class VariableEntry:
    """One variable, as stored. Dtypes by name; initializer, optimizer, policy and creator as JSON, from to_json()."""

    key_dtype: str
    value_dtype: str
    dim: int
    slots: tuple[SlotShape, ...]
    initializer: dict[str, Any]
    optimizer: dict[str, Any] | None
    policy: dict[str, Any] | None
    creator: dict[str, Any]
    trainable: bool
    checkpoint: bool
    bp_v2: bool
    rows: int
    step: int
    optimizer_steps: int = 0

    @property
    def schema(self) -> Schema:
        """The schema of its rows."""
        return Schema(dtype_of(self.key_dtype), dtype_of(self.value_dtype), self.dim, self.slots)


def rows_in_words(variables: Mapping[str, VariableEntry]) -> str:
    """Return how many variables and rows there are, for messages."""
    rows = sum(entry.rows for entry in variables.values())
    return f"{len(variables)} variable{'s' * (len(variables) != 1)}, {rows:,} row{'s' * (rows != 1)}"


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class HotRows:
    """Rows of a variable that were hot in one memory, and the bytes of all its cells there."""

    rows: int
    bytes: int


@dataclass
class EpochChanges:
    """The changes of one variable in one epoch. cleared: all rows were removed first. files: key files in changes/.
    dropped: the variable was dropped with its rows, or is no longer in checkpoints; cleared and files describe a later
    one of that name. left: it is no longer in checkpoints, but was not dropped.
    """

    cleared: bool = False
    files: list[str] = field(default_factory=list)
    dropped: bool = False
    left: bool = False


@dataclass
class Epoch:
    """The time from one checkpoint, or the store's creation, to the next (kvemb.durability.changes).

    since: the id of that checkpoint, or of the store. includes: if this store was brought to that checkpoint by its
    delta: its id, after those of the checkpoints that were passed; if it was restored from it: empty; otherwise None.
    """

    since: str
    variables: dict[str, EpochChanges] = field(default_factory=dict)
    includes: list[str] | None = None

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

    store: str
    id: str
    parent: str | None
    point: int
    created: float
    variables: dict[str, VariableEntry] = field(default_factory=dict)
    hot: dict[str, list[str]] = field(default_factory=dict)
    changes: list[Epoch] = field(default_factory=list)
    files: dict[str, FileEntry] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    tiers: dict[str, dict[str, HotRows]] = field(default_factory=dict)
    sightings: dict[str, Counted] = field(default_factory=dict)

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


def write(manifest: Manifest, directory: Path) -> None:
    """Write directory/manifest.json and wait until it is on disk."""
    fresh_files.write_new(directory / NAME, text_of(data_of(manifest)).encode())


def text_of(data: dict[str, Any]) -> str:
    """Return the text of a manifest. Each variable and each file has a line; json indents lines with slow Python."""
    return _indented(data, levels=2) + "\n"


def _indented(value: Any, levels: int, line: str = "\n ") -> str:
    if not (levels and isinstance(value, dict) and value):
        return json.dumps(value)
    entries = (f"{json.dumps(name)}: {_indented(entry, levels - 1, line + ' ')}" for name, entry in value.items())
    return "{" + line + ("," + line).join(entries) + line[:-1] + "}"


def data_of(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as JSON, checksum included; parse() reads its text. Do not change it.

    dataclasses.asdict would take five times as long, because it copies everything.
    """
    data: dict[str, Any] = {"format": FORMAT, **_fields(manifest)}
    for name in ("left_out", "extra", "tiers", "sightings"):
        if not data[name]:
            del data[name]
    data["variables"] = {name: _data_of_variable(entry) for name, entry in manifest.variables.items()}
    data["changes"] = [_data_of_epoch(epoch) for epoch in manifest.changes]
    data["files"] = {name: _fields(entry) for name, entry in manifest.files.items()}
    if manifest.tiers:
        tiers = manifest.tiers.items()
        data["tiers"] = {name: {at: _fields(held) for at, held in places.items()} for name, places in tiers}
    if manifest.sightings:
        data["sightings"] = {name: _fields(counted) for name, counted in manifest.sightings.items()}
    return {"checksum": checksum_of(data), **data}


def _fields(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__dataclass_fields__}


def _data_of_variable(entry: VariableEntry) -> dict[str, Any]:
    data = {**_fields(entry), "slots": [_fields(slot) for slot in entry.slots]}
    if not entry.optimizer_steps:
        del data["optimizer_steps"]
    return data


def _data_of_epoch(epoch: Epoch) -> dict[str, Any]:
    data = _fields(epoch)
    if epoch.includes is None:
        del data["includes"]
    data["variables"] = {}
    for name, changed in epoch.variables.items():
        fields = data["variables"][name] = _fields(changed)
        for flag in ("dropped", "left"):
            if not fields[flag]:
                del fields[flag]
    return data


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
        version = data["format"]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise Corruption(f"{path} is damaged: {error!r}; restore from another checkpoint") from error
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
        check(data, version)
        data["variables"] = {name: _entry(entry) for name, entry in data["variables"].items()}
        data["files"] = {name: FileEntry(**entry) for name, entry in data["files"].items()}
        data["changes"] = [_epoch(**epoch) for epoch in data["changes"]]
        tiers = data.get("tiers", {})
        data["tiers"] = {name: {at: HotRows(**held) for at, held in places.items()} for name, places in tiers.items()}
        data["sightings"] = {name: Counted(**entry) for name, entry in data.get("sightings", {}).items()}
        manifest = Manifest(**data)
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
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _epoch(since: str, variables: dict[str, Any], includes: list[str] | None = None) -> Epoch:
    return Epoch(since, {name: EpochChanges(**changed) for name, changed in variables.items()}, includes)


def _entry(data: dict[str, Any]) -> VariableEntry:
    slots = [SlotShape(slot, data["dim"]) if isinstance(slot, str) else SlotShape(**slot) for slot in data["slots"]]
    return VariableEntry(**{**data, "slots": tuple(slots)})


def entry_of(data: dict[str, Any], what: str) -> VariableEntry:
    """Parse a variable's entry, of a manifest of any readable format. Raises UnsupportedFormat."""
    try:
        slots = Fields(data).elements("slots")
        named = bool(slots) and all(isinstance(slot, str) for slot in slots)
        check_variable(Fields(data), 2 if named else FORMAT)
        return _entry(data)
    except (ValueError, RecursionError) as error:
        raise UnsupportedFormat(f"{what!r} is described in a way this kvemb cannot read: {error}") from error
