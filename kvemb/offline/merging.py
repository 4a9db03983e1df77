"""Sorts rows by key, and merges sorted streams of them; one row of equal keys stays. Not thread-safe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys
from kvemb.rows.names import check_names
from kvemb.rows.schema import Schema

# Which row of equal keys stays; None: there must be no equal keys.
Stays = Literal["last", "first"] | None


class EqualKeys(Exception):
    """Two rows have one key, where keys must be distinct. row: one of them."""

    def __init__(self, row: RowBlock) -> None:
        super().__init__(f"the key {row.keys[0]} has several rows")
        self.row = row


def merged(
    streams: list[Iterator[RowBlock]], schema: Schema, window: int, stays: Stays = "last", *, one_state: bool = False
) -> Iterator[RowBlock]:
    """Yield the rows of all streams in key order; for equal keys that of the last stream. window: rows held of each.

    one_state: see in_key_order. Raises EqualKeys if stays is None and a key occurs twice.
    """
    return (_one_of_each(parts, schema, stays, one_state) for parts in aligned(streams, schema, window))


def aligned(streams: list[Iterator[RowBlock]], schema: Schema, window: int) -> Iterator[list[RowBlock]]:
    """Yield the rows of all streams in key order, a part of each stream at a time; all parts end at the same key.

    window: rows held of each.
    """
    heads = [_Head(stream, schema) for stream in streams]
    while True:
        for head in heads:
            head.fill(window)
        if not any(len(head.ordered) for head in heads):
            return
        ends = [int(head.ordered[-1]) for head in heads if not head.ended]
        yield [head.take(min(ends) if ends else None) for head in heads]


class _Head:
    """The next rows of a stream."""

    def __init__(self, stream: Iterator[RowBlock], schema: Schema) -> None:
        self._stream, self._schema = stream, schema
        self._rows = RowBlock(schema, 0)
        self.ordered = np.empty(0, np.uint64)
        self.ended = False

    def fill(self, window: int) -> None:
        """Read rows until at least half a window of them is held."""
        more: list[RowBlock] = []
        count = len(self._rows)
        while count < max(1, window // 2) and not self.ended:
            block = next(self._stream, None)
            if block is None:
                self.ended = True
            else:
                more.append(block)
                count += len(block)
        if more:
            self._rows = RowBlock.joined([self._rows, *more], self._schema)
            self.ordered = order_keys(self._rows.keys, self._schema)

    def take(self, last: int | None) -> RowBlock:
        """Remove and return the rows up to and including a key; None: all."""
        stop = len(self._rows) if last is None else int(np.searchsorted(self.ordered, np.uint64(last), "right"))
        taken, self._rows = self._rows.part(0, stop), self._rows.part(stop, len(self._rows))
        self.ordered = self.ordered[stop:]
        return taken


def _one_of_each(parts: list[RowBlock], schema: Schema, stays: Stays, one_state: bool) -> RowBlock:
    """Return the rows of parts, each in key order; for equal keys that of the last part, or of the first."""
    parts = [part for part in parts if len(part)] or parts[:1]
    return parts[0] if len(parts) == 1 else in_key_order(RowBlock.joined(parts, schema), stays, one_state=one_state)


def in_key_order(rows: RowBlock, stays: Stays = "last", *, one_state: bool = False) -> RowBlock:
    """Return rows in key order; of equal keys only the row that stays.

    one_state: the rows are given for one table, so equal string keys must have equal names; rows of several deltas need
    not. Raises EqualKeys, HashCollision.
    """
    ordered = order_keys(rows.keys, rows.schema)
    if (ordered[1:] > ordered[:-1]).all():
        return rows
    order = np.argsort(ordered, kind="stable")
    ordered = ordered[order]
    differs = ordered[1:] != ordered[:-1]
    if not differs.all():
        if one_state and rows.schema.name_bytes:
            equal, names = order[1:][~differs], rows.names()
            check_names(rows.keys[equal], names[equal], names[order[:-1][~differs]])
        if stays is None:
            raise EqualKeys(rows.select(order[[np.argmin(differs)]]))
    return rows.select(order[np.insert(differs, 0, True) if stays == "first" else np.append(differs, True)])
