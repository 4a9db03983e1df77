"""Validation of each field of a manifest (FORMAT.md, "Manifest"), its type and range, before it is used.

Pure functions on parsed JSON. They raise ValueError, naming the field, what it must be and what it is, or
UnsupportedFormat if this kvemb does not know a kind or a parameter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kvemb.checks.brief import brief
from kvemb.checks.fields import Fields
from kvemb.checks.ranges import (
    END_OF_TIME,
    MAX_BUDGET_BYTES,
    MAX_DIM,
    MAX_FILE_BYTES,
    MAX_NAME_BYTES,
    MAX_POINTS,
    MAX_ROWS,
    MAX_STEPS,
)
from kvemb.errors import BackendUnavailable, UnsupportedFormat
from kvemb.initializers import initializer_from_json
from kvemb.optimizers import optimizer_from_json
from kvemb.options import RocksDBCreator
from kvemb.restrict import policy_from_json
from kvemb.rows.schema import KEY_DTYPES, VALUE_DTYPES, dtype_of

_ID = (r"[0-9a-f]{32}", "32 hexadecimal digits")
_SHA256 = (r"[0-9a-f]{64}", "64 hexadecimal digits")
_CHANGED = (r"[0-9]{6,18}\.keys", "names such as '000007.keys'")
_HOT = (r"[0-9]{6,18}-[0-9]{3,18}\.keys", "names such as '000007-000.keys'")
_COUNTS = (r"[0-9]{6,18}-[0-9]{3,18}\.counts", "a name such as '000007-000.counts'")
_PLACE = r"host|gpu:[0-9]{1,4}"
# Limits of operating systems for a file name and for a path.
_MAX_PART, _MAX_PATH = 255, 4096
_BREAKS = ("Cc", "Cs", "Zl", "Zp")


def check(data: object, version: int) -> None:
    """Raise unless data, a manifest without `checksum` and `format`, is valid in that format version."""
    fields = Fields(data)
    for name in ("store", "id"):
        fields.text(name, *_ID)
    if fields.take("parent") is not None:
        Fields(data).text("parent", *_ID)
    fields.integer("point", 1, MAX_POINTS)
    fields.number("created", 0, END_OF_TIME)
    variables = _of_names(fields, "variables")
    for name in variables.names():
        check_variable(variables.fields(name), version)
    hot = _of_names(fields, "hot")
    for name in hot.names():
        hot.texts(name, *_HOT)
    if not (epochs := fields.elements("changes")):
        raise fields.refused("changes", "an array of at least one epoch", epochs)
    for at, epoch in enumerate(epochs):
        _check_epoch(Fields(epoch, f"changes[{at}]"))
    files = fields.fields("files")
    for name in files.names():
        if not is_path(name):
            raise ValueError(f"files must be paths below the directory, got {brief(name)}")
        file = files.fields(name)
        file.integer("bytes", 0, MAX_FILE_BYTES)
        file.text("sha256", *_SHA256)
        file.done()
    if fields.has("left_out"):
        for name in fields.elements("left_out"):
            if type(name) is not str or not is_name(name):
                raise fields.refused("left_out", "an array of variables' names", name)
    if version >= 5 and fields.has("extra"):
        fields.fields("extra")
    if version >= 5 and fields.has("tiers"):
        tiers = _of_names(fields, "tiers")
        for name in tiers.names():
            _check_tiers(tiers.fields(name))
    if version >= 5 and fields.has("sightings"):
        sightings = _of_names(fields, "sightings")
        for name in sightings.names():
            _check_counted(sightings.fields(name))
    fields.done()


def _of_names(fields: Fields, name: str) -> Fields:
    """Take an object whose field names are variables' names."""
    by_name = fields.fields(name)
    for each in by_name.names():
        if not is_name(each):
            raise ValueError(f"{name} must have variables' names as fields, got {brief(each)}")
    return by_name


def _check_tiers(places: Fields) -> None:
    for place in places.names():
        if re.fullmatch(_PLACE, place) is None:
            raise ValueError(f"{places.where} must have 'host' or names such as 'gpu:0' as fields, got {brief(place)}")
        held = places.fields(place)
        held.integer("rows", 0, MAX_ROWS)
        held.integer("bytes", 0, MAX_FILE_BYTES)
        held.done()


def _check_counted(counted: Fields) -> None:
    counted.text("file", *_COUNTS)
    counters = counted.integer("counters", 4, MAX_BUDGET_BYTES)
    if counters % 4:
        raise counted.refused("counters", "a multiple of 4", counters)
    counted.integer("counted", 0, MAX_ROWS)
    counted.done()


def _check_epoch(epoch: Fields) -> None:
    epoch.text("since", *_ID)
    variables = _of_names(epoch, "variables")
    for name in variables.names():
        changed = variables.fields(name)
        changed.flag("cleared")
        changed.texts("files", *_CHANGED)
        for flag in ("dropped", "left"):
            if changed.has(flag):
                changed.flag(flag)
        changed.done()
    if epoch.has("includes"):
        epoch.texts("includes", *_ID)
    epoch.done()


def check_variable(entry: Fields, version: int) -> None:
    """Raise unless the fields are a valid entry of a variable in that format version."""
    entry.one_of("key_dtype", KEY_DTYPES)
    values = entry.one_of("value_dtype", VALUE_DTYPES)
    dim = entry.integer("dim", 1, MAX_DIM)
    slots = _check_slots(entry, dim, version)
    for name in ("trainable", "checkpoint", "bp_v2"):
        entry.flag(name)
    entry.integer("rows", 0, MAX_ROWS)
    entry.integer("step", 0, MAX_STEPS - 1)
    if version >= 5 and entry.has("optimizer_steps"):
        entry.integer("optimizer_steps", 0, MAX_STEPS - 1)
    initializer = _made(entry, "initializer", initializer_from_json)
    optimizer = _made(entry, "optimizer", optimizer_from_json, or_null=True)
    _made(entry, "policy", policy_from_json, or_null=True)
    _made(entry, "creator", RocksDBCreator.from_json)
    entry.done()
    expected = [] if optimizer is None else [asdict(slot) for slot in optimizer.shapes(dim)]
    if slots != expected:
        raise entry.refused("slots", f"those of the optimizer, {expected}", slots)
    if optimizer is not None and values in ("int8", "int32", "int64"):
        raise entry.refused("optimizer", f"null for values of {values}", optimizer)
    try:
        initializer.check(dim, dtype_of(values))
    except BackendUnavailable:
        pass  # opening the variable raises it
    except (TypeError, ValueError) as error:
        raise ValueError(f"{entry.path('initializer')}: {error}") from error


def _check_slots(entry: Fields, dim: int, version: int) -> list[dict[str, Any]]:
    """Return a variable's slots as in format 3. In format 2 a slot is a name, and as wide as the embedding."""
    if version == 2:
        return [{"name": name, "width": dim} for name in entry.texts("slots", r"\w{1,100}", "names of slots")]
    slots = entry.elements("slots")
    for at, slot in enumerate(slots):
        fields = Fields(slot, f"{entry.path('slots')}[{at}]")
        fields.text("name", r"\w{1,100}", "a name of a slot")
        fields.integer("width", 1, MAX_DIM)
        fields.done()
    return slots


def _made(entry: Fields, name: str, make: Callable[[Any], Any], *, or_null: bool = False) -> Any:
    """Return the object made from a JSON field. Raises ValueError, UnsupportedFormat."""
    described = entry.take(name)
    if not isinstance(described, dict) and not (or_null and described is None):
        raise entry.refused(name, "an object or null" if or_null else "an object", described)
    if described is None:
        return None
    try:
        return make(described)
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{entry.path(name)}: {error}") from error


def is_name(name: str) -> bool:
    """Whether this is a valid variable's name, in a manifest or as an argument.

    Does not require printable characters, which differ between versions of Unicode: engine.specification.check_name
    does, for new variables.
    """
    if any(unicodedata.category(character) in _BREAKS for character in name) or name == "default":
        return False
    parts = name.split("/")
    return all(part not in ("", ".", "..") for part in parts) and len(name.encode()) <= MAX_NAME_BYTES


def is_path(name: str) -> bool:
    """Whether this is a valid path of a file below a checkpoint."""
    if not (name.isascii() and name.isprintable() and len(name) <= _MAX_PATH):
        return False
    return all(part not in ("", ".", "..") and len(part) <= _MAX_PART for part in name.split("/"))
