"""What a checkpoint says of itself: the store, and each variable's schema, policy, optimizer and row count.

One JSON file, `manifest.json`, beside the rows (FORMAT.md, "Manifest"). Pure values, but for read() and write().
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.schema import KEY_DTYPES, VALUE_DTYPES, Schema, dtype_of

FORMAT = 1  # on disk; do not renumber
NAME = "manifest.json"


@dataclass(frozen=True)
class VariableEntry:
    """One variable, as stored. Dtypes by name; initializer, optimizer, policy and creator as their to_json() gives
    them.
    """

    key_dtype: str
    value_dtype: str
    dim: int
    slots: tuple[str, ...]
    initializer: dict[str, Any]
    optimizer: dict[str, Any] | None
    policy: dict[str, Any] | None
    creator: dict[str, Any]
    trainable: bool
    checkpoint: bool
    bp_v2: bool
    rows: int
    step: int

    @property
    def schema(self) -> Schema:
        """The schema of its rows."""
        return Schema(dtype_of(self.key_dtype), dtype_of(self.value_dtype), self.dim, tuple(self.slots))


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's description. point: the number of the durable point of its store, counted from 1."""

    store: str
    point: int
    variables: dict[str, VariableEntry] = field(default_factory=dict)


def write(manifest: Manifest, directory: Path) -> None:
    """Write directory/manifest.json and wait until it is on disk."""
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, sort_keys=True) + "\n"
    with open(directory / NAME, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read(directory: Path) -> Manifest:
    """Read directory/manifest.json. Raises CheckpointNotFound, UnsupportedFormat or Corruption, naming the file."""
    path = directory / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data.pop("format")
    except FileNotFoundError as error:
        raise CheckpointNotFound(f"{directory} is not a checkpoint: it has no {NAME}") from error
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise Corruption(f"{path} is damaged: {error!r}; restore from another checkpoint") from error
    if version != FORMAT:
        raise UnsupportedFormat(
            f"{path} has format {version!r}, this kvemb reads format {FORMAT}; use the kvemb that wrote it"
        )
    try:
        entries = {name: _entry(entry) for name, entry in data["variables"].items()}
        return Manifest(str(data["store"]), int(data["point"]), entries)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        names = ", ".join(f.name for f in fields(VariableEntry))
        raise Corruption(f"{path} is damaged: {error}; a variable has {names}") from error


def _entry(data: dict[str, Any]) -> VariableEntry:
    """Return a variable's entry. Raises ValueError, TypeError or KeyError where a field cannot be what it should."""
    entry = VariableEntry(**{**data, "slots": tuple(data["slots"])})
    sound = (
        entry.key_dtype in KEY_DTYPES
        and entry.value_dtype in VALUE_DTYPES
        and all(type(number) is int for number in (entry.dim, entry.rows, entry.step))
        and (entry.dim >= 1 and entry.rows >= 0 and entry.step >= 0)
        and all(type(slot) is str for slot in entry.slots)
        and all(type(described) is dict for described in (entry.initializer, entry.creator))
        and all(described is None or type(described) is dict for described in (entry.optimizer, entry.policy))
        and all(type(truth) is bool for truth in (entry.trainable, entry.checkpoint, entry.bp_v2))
    )
    if not sound:
        raise ValueError(f"no variable can be {data!r}")
    return entry
