"""Inspect a checkpoint or a store: its contents, rows by key, and nearest neighbours.

Rows are streamed, so memory does not grow with the table. Each function is a command of the same name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.numbers import unit
from kvemb.tools.reading import Progress, all_opened, no_rows, opened, scores_are_times, selected, with_progress


@dataclass
class VariableInfo:
    """One variable without its rows. described: as kvemb.bulk.described, with `step` renamed to `recording_calls`.

    tiers: if some rows were hot on a GPU when it was saved, `rows` and `bytes` in each memory, "gpu:0" or "host".
    sightings: if an Admission counted any, `counted` since its counters began or were last halved, how many `counters`,
    of one byte each, and the `bytes` of their files.
    """

    name: str
    rows: int
    row_bytes: int
    described: dict[str, Any]
    tiers: dict[str, dict[str, int]] = field(default_factory=dict)
    sightings: dict[str, int] | None = None


@dataclass
class MarkInfo:
    """A mark of a store. path: its durable point, which is read as a checkpoint. name: None if it has none.

    kept_bytes: of files that it alone keeps.
    """

    id: str
    name: str | None
    created: float
    path: str
    kept_bytes: int


@dataclass
class Info:
    """The description of a place. kind: "checkpoint", "store", or words for a cluster's checkpoint.

    path: of the checkpoint, or its URL. newest: whether it is the newest checkpoint of a given series. id, parent,
    created: of the checkpoint or the durable point. recording_calls: the calls, such as lookups, that recorded uses, of
    the variable with the most. files: bytes of every file. attached: bytes of the files saved with the rows, by name.
    extra: the values saved with the rows. marks: those of a store, the oldest first.
    """

    path: Path | str
    newest: bool
    kind: str
    id: str
    parent: str | None
    created: float
    recording_calls: int
    variables: list[VariableInfo]
    files: dict[str, int]
    attached: dict[str, int]
    extra: dict[str, Any]
    marks: list[MarkInfo]

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum(self.files.values())


def info(path: str | os.PathLike[str]) -> Info:
    """Return the description of a checkpoint, or of a store as of its last durable point. Reads no rows.

    path: a place (kvemb.bulk.Place): a checkpoint, a store, a series, whose newest checkpoint is taken, or
    SERIES/00000042; also at a URL, or of a cluster. Raises StoreNotFound, Corruption, UnsupportedFormat;
    CheckpointNotFound, TransferError.
    """
    place = bulk.Place(path)
    found = place.described()
    return Info(
        place.here or place.name,
        place.newest,
        found.kind,
        id=found.id,
        parent=found.parent,
        created=found.created,
        recording_calls=max((entry.step for entry in found.variables.values()), default=0),
        variables=[
            VariableInfo(
                name,
                entry.rows,
                entry.schema.row_bytes,
                {"name": name, **_as_json(entry)},
                {place: asdict(held) for place, held in sorted(found.tiers.get(name, {}).items())},
                asdict(found.sightings[name]) if name in found.sightings else None,
            )
            for name, entry in sorted(found.variables.items())
        ],
        files=found.files,
        attached=found.attached,
        extra=found.extra,
        marks=[MarkInfo(each.id, each.name, each.created, str(each.path), alone) for each, alone in found.marks],
    )


def _as_json(entry: Any) -> dict[str, Any]:
    named = {"recording_calls" if name == "step" else name: value for name, value in vars(entry).items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}


@dataclass
class Peek:
    """Rows by key, in the order of the given keys. missing: the keys that have no row.

    neighbours: for each key, the nearest other keys and their cosines. scores_are_times: they are seconds since 1970.
    """

    rows: bulk.Rows
    missing: list[int | str] = field(default_factory=list)
    neighbours: dict[int | str, list[tuple[int | str, float]]] = field(default_factory=dict)
    scores_are_times: bool = False


def peek(
    path: str | os.PathLike[str],
    variable: str | None = None,
    keys: Sequence[int | str] | None = None,
    *,
    count: int = 10,
    neighbours: int = 0,
    progress: Progress | None = None,
) -> Peek:
    """Return rows of a variable: those of keys, or the first `count` in key order.

    neighbours: how many nearest other rows, by cosine, to find for each row; the search is exact, over all finite rows.
    Raises BadInput.
    """
    with opened(path, variable, progress=progress, or_all=True) as source:
        return _peek(source, keys, count, neighbours, progress)


def peek_all(
    path: str | os.PathLike[str], *, count: int = 10, neighbours: int = 0, progress: Progress | None = None
) -> dict[str, Peek]:
    """Return the first `count` rows of each variable, by its name. Raises BadInput."""
    with all_opened(path, progress=progress) as sources:
        return {source.name: _peek(source, None, count, neighbours, progress) for source in sources}


def _peek(
    source: kvemb.Variable,
    keys: Sequence[int | str] | None,
    count: int,
    neighbours: int,
    progress: Progress | None,
) -> Peek:
    if keys:
        rows, missing = _read(source, keys)
    else:
        rows, missing = next(bulk.scan(source, count), no_rows(source)), []
    nearest = _neighbours(source, rows, neighbours, progress) if neighbours and len(rows) else {}
    return Peek(rows, missing, nearest, scores_are_times(bulk.described(source)["policy"]))


def _in_key_dtype(source: kvemb.Variable, given: Sequence[int | str]) -> list[int | str]:
    """Return keys as the variable has them. Raises BadInput."""
    if source.key_dtype.kind == "O":
        return [str(key) for key in given]
    limits, kind = np.iinfo(source.key_dtype), f"{source.key_dtype.name}, the key dtype of variable {source.name!r}"
    keys: list[int | str] = []
    for key in given:
        if not re.fullmatch(r"-?[0-9]{1,20}", str(key)):
            raise WrongUsage(
                f"keys of variable {source.name!r} are integers, got {str(key)[:64]!r}; a variable is named with "
                "--variable NAME (see kvemb peek --help)"
            )
        if not limits.min <= int(key) <= limits.max:
            raise BadInput(f"key {str(key)[:64]} does not fit {kind}")
        keys.append(int(key))
    return keys


def _read(source: kvemb.Variable, given: Sequence[int | str]) -> tuple[bulk.Rows, list[int | str]]:
    """Return the rows of keys in this order, and the keys that have none. Raises BadInput."""
    keys = _in_key_dtype(source, given)
    found = bulk.read(source, np.unique(np.array(keys, source.key_dtype)))
    at = {key: position for position, key in enumerate(found.keys.tolist())}
    rows = selected(found, np.array([at[key] for key in keys if key in at], np.int64))
    return rows, [key for key in keys if key not in at]


def _neighbours(
    source: kvemb.Variable, asked: bulk.Rows, count: int, progress: Progress | None
) -> dict[int | str, list[tuple[int | str, float]]]:
    queries = unit(asked.values)
    best = np.full((len(asked), 0), 0.0)
    keys = np.empty((len(asked), 0), source.key_dtype)
    for rows in with_progress(bulk.scan(source), progress, source.size()):
        near = queries @ unit(rows.values).T  # NaN if either row has one; such rows are not neighbours
        near[asked.keys[:, None] == rows.keys[None, :]] = -np.inf
        near[np.isnan(near)] = -np.inf
        best = np.concatenate([best, near], axis=1)
        keys = np.concatenate([keys, np.broadcast_to(rows.keys, near.shape)], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :count]
        best, keys = np.take_along_axis(best, order, axis=1), np.take_along_axis(keys, order, axis=1)
    return {
        key: [(other, float(near)) for other, near in zip(keys[at].tolist(), best[at], strict=True) if near > -np.inf]
        for at, key in enumerate(asked.keys.tolist())
    }
