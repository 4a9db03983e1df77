"""Cold rows in a dict: for small tables that need no disk, and as the model in tests.

Concurrent reads are safe, writes are not. Not durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kvemb.contracts import ColdStore, Gap, Mask
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import LAST_KEY, decode_records, decode_rows, encode_keys, encode_records
from kvemb.rows.schema import Schema


class MemoryStore(ColdStore):
    """A cold store that is a dict from encoded key to record."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._records: dict[bytes, bytes] = {}

    def fill(self, rows: RowBlock) -> Mask:
        records = list(map(self._records.get, encode_keys(rows.keys, self.schema)))
        found = np.fromiter(map(bool, records), np.bool_, len(records))
        rows.put(found, decode_records(rows.keys[found], [r for r in records if r], self.schema))
        return found

    def write(self, rows: RowBlock) -> int:
        # The last row of each key.
        _, places = np.unique(rows.keys[::-1], return_index=True)
        rows = rows.select(len(rows) - 1 - places)
        removed = rows.flags & REMOVED != 0
        for key in encode_keys(rows.keys[removed], self.schema):
            self._records.pop(key, None)
        kept = rows.select(~removed)
        self._records.update(zip(encode_keys(kept.keys, self.schema), encode_records(kept), strict=True))
        return len(rows)

    def rescue(self, batch_rows: int) -> Iterator[RowBlock | Gap]:
        return self.scan(batch_rows)

    def splits(self, parts: int) -> list[int]:
        keys = sorted(self._records)
        return [
            int.from_bytes(keys[at], "big")
            for at in sorted({len(keys) * part // parts for part in range(1, parts)} - {0})
        ]

    def compact(self, report: Callable[[int, int], None]) -> None:
        report(1, 1)

    def scan(self, batch_rows: int, first: int = 0, last: int = LAST_KEY) -> Iterator[RowBlock]:
        bounds = first.to_bytes(8, "big"), last.to_bytes(8, "big")
        items = sorted(item for item in self._records.items() if bounds[0] <= item[0] <= bounds[1])
        return (decode_rows(items[at : at + batch_rows], self.schema) for at in range(0, len(items), batch_rows))

    def clear(self) -> None:
        self._records.clear()

    def disk_bytes(self) -> int:
        # A list is made atomically; another thread may write meanwhile.
        return sum(map(len, list(self._records.values())))
