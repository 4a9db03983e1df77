"""Manifests, and segments of the log, for tests of their readers."""

from __future__ import annotations

import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvemb.durability.manifest import Epoch, Manifest
from kvemb.durability.variable_entry import VariableEntry
from kvemb.journal.segment_files import CHECKSUM, ENTRY, HEAD, MAGIC, MARK, ROWS, VERSION, note
from kvemb.options import RocksDBCreator
from kvemb.rows.schema import SlotShape

ID = "c0ffee" + 26 * "0"


def entry_of(key_dtype: str = "int64", dim: int = 2, slots: tuple[SlotShape, ...] = (), **fields: Any) -> VariableEntry:
    """Return a valid manifest entry of a variable, with some fields given; the default schema is blocks.SCHEMA."""
    usual: dict[str, Any] = {
        "value_dtype": "float32",
        "initializer": {"kind": "constant", "value": 0.0},
        "optimizer": None,
        "policy": None,
        "creator": asdict(RocksDBCreator()),
        "trainable": True,
        "checkpoint": True,
        "bp_v2": False,
        "rows": 0,
        "step": 0,
    }
    return VariableEntry(key_dtype=key_dtype, dim=dim, slots=slots, **{**usual, **fields})


def manifest_of(**fields: Any) -> Manifest:
    """Return a valid manifest, with some fields given."""
    usual: dict[str, Any] = {"store": ID, "id": ID, "parent": None, "point": 1, "created": 5.0, "changes": [Epoch(ID)]}
    return Manifest(**{**usual, **fields})


def log_entry(
    payload: bytes = b"",
    kind: int = ROWS,
    name: bytes = b"table",
    *,
    rows: int = 0,
    step: int = 0,
    number: int = 1,
    synced: int = 0,
) -> bytes:
    """Return an entry of the log."""
    whole = ENTRY.pack(MARK, kind, len(name), rows, len(payload), number, synced, step) + name + payload
    return whole + CHECKSUM.pack(zlib.crc32(whole))


def segment(path: Path, *entries: bytes, before: int = 0, synced: int = 0, version: int = VERSION) -> Path:
    """Write a segment of the log. before, synced: the numbers in its head."""
    path.write_bytes(HEAD.pack(MAGIC, version) + note(before, synced) + b"".join(entries))
    return path
