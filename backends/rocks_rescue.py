"""Reading what is left of a damaged column family. Where a block cannot be read, so cannot the keys it may hold.

An iterator merges all files: where it stands on a key, no file had anything unreadable there, so what it shows is the
newest. RocksDB checks every block; a range in which no iterator can stand is a gap, found by seeking.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from kvemb.contracts import Gap
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import decode_rows
from kvemb.rows.schema import LAST_KEY, Schema


def rescue(family: Any, schema: Schema, batch_rows: int) -> Iterator[RowBlock | Gap]:
    """Yield rows and gaps in key order. See contracts.ColdStore.rescue."""
    start: int | None = 0
    while start is not None:
        items, unread = family.items(from_key=_key(start)), start
        while batch := list(islice(items, batch_rows)):
            unread = int.from_bytes(batch[-1][0], "big") + 1
            yield decode_rows(batch, schema)
        # items() ends in the same way at the last key and at an error.
        start = None
        if unread <= LAST_KEY and not _can_read(family, unread):
            start = _next_readable(family, unread)
            yield Gap(unread, LAST_KEY if start is None else start - 1)


def _next_readable(family: Any, unread: int) -> int | None:
    """Return where reading goes on after a key at which it fails: the first place, but for others that fail between."""
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
    """Whether an iterator can stand at the first key from this one on, or at the end."""
    place = family.iter()
    try:
        place.seek(_key(key))
        place.status()
    except Exception:
        return False
    return True


def _key(ordered: int) -> bytes:
    return ordered.to_bytes(8, "big")
