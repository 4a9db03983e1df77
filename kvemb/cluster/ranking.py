"""The ranks of one variable's rows on a shard, while the table is restricted over all shards. Thread-safe.

The coordinator restricts one variable at a time (kvemb.cluster.coordination.restricting).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.operations.restricting import Restriction


class Ranking:
    """See the module. A repeated call waits for the first one, as both read the same spool."""

    def __init__(self) -> None:
        self._ranked: Restriction | None = None
        self._lock = threading.Lock()

    def begin(self, ranked: Restriction) -> None:
        """Keep the ranks of a restriction that begins."""
        self.end()
        self._ranked = ranked

    @contextmanager
    def using(self) -> Iterator[Restriction]:
        """Yield the ranks."""
        with self._lock:
            assert self._ranked is not None
            yield self._ranked

    def counts(self, prefix: list[int]) -> npt.NDArray[np.int64]:
        """Return how many ranks with this prefix have each value of the next digit: ScoreSpool.counts."""
        with self.using() as ranked:
            return ranked.counts(prefix)

    def matching(self, prefix: list[int]) -> npt.NDArray[Any]:
        """Return the ranks with this prefix of digits: ScoreSpool.matching."""
        with self.using() as ranked:
            return ranked.matching(prefix)

    def end(self) -> None:
        """Forget the ranks. Idempotent."""
        with self._lock:
            if self._ranked is not None:
                self._ranked.close()
            self._ranked = None
