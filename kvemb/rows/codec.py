"""Keys and rows as the bytes of the cold store (FORMAT.md, "Key" and "Record"). Pure functions; no I/O.

A key is 8 bytes, big-endian, with the sign bit of signed keys flipped, so that the order of bytes is the numeric order.
A record is a 17-byte header (score, step of last change, flags), little-endian, then the row. All records of a variable
have one width.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.errors import Corruption
from kvemb.rows.block import MEMORY_FLAGS, RowBlock
from kvemb.rows.schema import Schema

KEY_BYTES = 8
# The largest ordered key (order_keys).
LAST_KEY = 2**64 - 1
_SIGN = np.uint64(1 << 63)

# Ordered keys: the results of order_keys.
Ordered = npt.NDArray[np.uint64]


def order_keys(keys: npt.NDArray[np.int64], schema: Schema) -> Ordered:
    """Map keys (n,) to uint64 whose order is the numeric order of the keys."""
    bits = keys.view(np.uint64)
    return bits if schema.key_dtype == np.uint64 else bits ^ _SIGN


def unordered_keys(ordered: Ordered, schema: Schema) -> npt.NDArray[np.int64]:
    """Map ordered keys, the results of order_keys, back to keys (n,)."""
    return (ordered if schema.key_dtype == np.uint64 else ordered ^ _SIGN).view(np.int64)


def order_key(key: int, schema: Schema) -> int:
    """Return the ordered key of one key in the key dtype."""
    return key if schema.key_dtype == np.uint64 else key + int(_SIGN)


def key_at(ordered: int, schema: Schema) -> int:
    """Return the key, in the key dtype, of an ordered key; if it is out of range, the nearest key."""
    key = ordered if schema.key_dtype == np.uint64 else ordered - int(_SIGN)
    limits = np.iinfo(schema.key_dtype)
    return min(max(key, int(limits.min)), int(limits.max))


def encode_keys(keys: npt.NDArray[np.int64], schema: Schema) -> list[bytes]:
    """Return each key's 8 bytes."""
    encoded: list[bytes] = order_keys(keys, schema).astype(">u8").view("V8").tolist()
    return encoded


def decode_keys(encoded: list[bytes], schema: Schema) -> npt.NDArray[np.int64]:
    """Decode keys to int64 (n,). Raises Corruption if one is not 8 bytes long."""
    if strange := set(map(len, encoded)) - {KEY_BYTES}:
        raise Corruption(f"keys must be {KEY_BYTES} bytes each, got one with {min(strange)}; run kvemb verify --deep")
    return unordered_keys(np.frombuffer(b"".join(encoded), ">u8").astype(np.uint64), schema)


def record_dtype(schema: Schema) -> np.dtype[Any]:
    """The layout of a record: packed, little-endian."""
    return _layout(schema.row_bytes)


@cache
def _layout(row_bytes: int) -> np.dtype[Any]:
    return np.dtype([("score", "<f8"), ("step", "<i8"), ("flags", "u1"), ("row", f"V{row_bytes}")])


def encode_records(block: RowBlock) -> list[bytes]:
    """Return each row's record."""
    records = _records(block)
    encoded: list[bytes] = records.view(f"V{records.itemsize}").tolist()
    return encoded


def _records(block: RowBlock) -> npt.NDArray[Any]:
    layout = record_dtype(block.schema)
    records = np.empty(len(block), layout)
    records["score"], records["step"] = block.scores, block.steps
    records["flags"] = block.flags & ~np.uint8(MEMORY_FLAGS)
    records["row"] = block.words.view(layout["row"]).reshape(-1)
    return records


def decode_records(keys: npt.NDArray[np.int64], encoded: list[bytes], schema: Schema) -> RowBlock:
    """Return the rows of `encoded`, one for each key. Raises Corruption when a record has another width."""
    layout = record_dtype(schema)
    if strange := set(map(len, encoded)) - {layout.itemsize}:
        raise Corruption(
            f"records must be {layout.itemsize} bytes each, got one with {min(strange)}; run kvemb verify --deep"
        )
    return _block(keys, np.frombuffer(b"".join(encoded), layout), schema)


def decode_rows(pairs: list[tuple[bytes, bytes]], schema: Schema) -> RowBlock:
    """Return the rows of pairs of an encoded key and a record, at least one pair. Raises Corruption."""
    keys, records = zip(*pairs, strict=True)
    return decode_records(decode_keys(list(keys), schema), list(records), schema)


def check_scores(block: RowBlock) -> None:
    """Raise Corruption if a score is NaN: a full bucket of such rows has no lowest score, so none could be evicted."""
    strange = np.isnan(block.scores)
    if strange.any():
        raise Corruption(f"the score of key {block.keys[strange][0]} is not a number; run kvemb verify --deep")


def pack_rows(block: RowBlock) -> bytes:
    """Return all rows as one bytes object: the keys, 8 bytes each, then the records."""
    return order_keys(block.keys, block.schema).astype(">u8").tobytes() + _records(block).tobytes()


def unpack_rows(packed: bytes, count: int, schema: Schema) -> RowBlock:
    """Return the rows that pack_rows packed. Raises Corruption unless they are `count` rows of the schema."""
    layout = record_dtype(schema)
    if len(packed) != count * (KEY_BYTES + layout.itemsize):
        row_bytes = KEY_BYTES + layout.itemsize
        raise Corruption(f"{count} rows of {row_bytes} bytes must have {count * row_bytes} bytes, got {len(packed)}")
    keys = unordered_keys(np.frombuffer(packed, ">u8", count).astype(np.uint64), schema)
    return _block(keys, np.frombuffer(packed, layout, count, KEY_BYTES * count), schema)


def _block(keys: npt.NDArray[np.int64], records: npt.NDArray[Any], schema: Schema) -> RowBlock:
    scores, steps = records["score"].astype(np.float64), records["step"].astype(np.int64)
    words = np.empty((len(records), schema.row_words), np.uint64)
    words.view(records.dtype["row"]).reshape(-1)[:] = records["row"]
    return RowBlock.of(schema, keys.copy(), scores, steps, records["flags"].copy(), words)
