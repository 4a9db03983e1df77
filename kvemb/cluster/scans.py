"""Scans of a shard that clients read batch by batch. A repeated call returns the same batch. Thread-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from kvemb.cluster.messages import Columns
from kvemb.errors import Closed
from kvemb.rows.block import RowBlock

# Open scans; if there are more, the least recently read one is ended.
MAX_SCANS = 64


class _Scan:
    """One scan. Keeps its last batch, in case the answer is lost."""

    def __init__(self, blocks: Iterator[RowBlock]) -> None:
        self._blocks, self._given = blocks, 0
        self._last: Columns | None = None
        self._lock = threading.Lock()

    def batch(self, number: int) -> Columns | None:
        """Return the next batch, or the last one again; None after the end."""
        with self._lock:
            if number == self._given:
                block = next(self._blocks, None)
                self._last = None if block is None else block.columns
                self._given += 1
            return self._last


class Scans:
    """The scans of all clients, by token."""

    def __init__(self) -> None:
        self._scans: OrderedDict[str, _Scan] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, token: str, scan: Callable[[], Iterator[RowBlock]]) -> None:
        """Begin a scan, unless there is one with this token."""
        with self._lock:
            if token not in self._scans:
                self._scans[token] = _Scan(scan())
            if len(self._scans) > MAX_SCANS:
                self._scans.popitem(last=False)

    def batch(self, token: str, number: int) -> Columns | None:
        """Return the batch with this number, from 0; None after the end. Raises Closed."""
        with self._lock:
            if (scan := self._scans.get(token)) is None:
                raise Closed(f"the scan was ended because {MAX_SCANS} later ones began; begin it again")
            self._scans.move_to_end(token)
        return scan.batch(number)

    def end(self, token: str) -> None:
        """Forget a scan."""
        with self._lock:
            self._scans.pop(token, None)

    def end_all(self) -> None:
        """Forget every scan."""
        with self._lock:
            self._scans.clear()
