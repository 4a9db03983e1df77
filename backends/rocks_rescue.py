"""Reading the intact rows of a damaged column family. A range of keys that cannot be read is a gap.

An iterator merges all files, so if it is valid at a key, all files could be read there and the row is the newest one.
RocksDB verifies the checksum of every block; gaps are found by seeking.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from kvemb.contracts import Gap
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import LAST_KEY, decode_rows
from kvemb.rows.schema import Schema


def rescue(family: Any, schema: Schema, batch_rows: int) -> Iterator[RowBlock | Gap]:
    """Yield rows and gaps in key order. See contracts.ColdStore.rescue."""
    start: int | None = 0
    while start is not None:
        items, unread = family.items(from_key=_key(start)), start
        while batch := list(islice(items, batch_rows)):
            unread = int.from_bytes(batch[-1][0], "big") + 1
            yield decode_rows(batch, schema)
        # items() ends in the same way after the last key and after an error.
        start = None
        if unread <= LAST_KEY and not _can_read(family, unread):
            start = _next_readable(family, unread)
            yield Gap(unread, LAST_KEY if start is None else start - 1)


def _next_readable(family: Any, unread: int) -> int | None:
    """Return a key after `unread` from which reading succeeds, or None: the first one, unless several gaps follow."""
    below, step = unread, 1
    while not _can_read(family, min(above := below + step, LAST_KEY)):
        if above >= LAST_KEY:
            return None
        below, step = above, 2 * step
    above = min(above, LAST_KEY)
    while above - below > 1:
        middle = (below + above) // 2
        if _can_read(family, middle):
            above = middle
        else:
            below = middle
    return above


def _can_read(family: Any, key: int) -> bool:
    """Whether an iterator can be positioned at the first key from this one on, or at the end."""
    iterator = family.iter()
    try:
        iterator.seek(_key(key))
        iterator.status()
    except Exception:
        return False
    return True


def _key(ordered: int) -> bytes:
    return ordered.to_bytes(8, "big")
