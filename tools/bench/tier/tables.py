"""A table on disk for both sides, loaded once for each size; every case works on links of it, from the same state.

Scores are as after long training: 20 uses per row on average, by a Zipf law of exponent 1. Popularity never drifts, so
the most popular rows are the same for every skew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.bench.data import Ids, ids_of, values_of
from kvemb.tools.bench.measure import until_idle
from kvemb.tools.bench.tier.cases import MIN_MEMORY
from kvemb.tools.bench.tier.kernel import table_files
from kvemb.tools.bench.train_by_hand import RocksLoop
from kvemb.tools.bench.trained import EPSILON, LEARNING_RATE, open_table

LOAD_BATCH = 1 << 18
USES = 20


class TableOnDisk:
    """A checkpoint, and a database of the loop written by hand, with the same rows."""

    def __init__(self, folder: Path, rows: int, dim: int) -> None:
        """folder: of the tables of all sizes."""
        self.rows, self.dim, self.place = rows, dim, folder / f"table-{rows}"

    def load(self) -> None:
        """Load the rows, unless they are loaded already; an interrupted load starts again."""
        unfinished = self.place.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        if self.place.exists():
            return
        unfinished.mkdir()
        ids = ids_of(np.arange(self.rows, dtype=np.int64))
        ranks = np.argsort(ids)
        ids = ids[ranks]
        with kvemb.open(unfinished / "store", memory_budget=4 * MIN_MEMORY) as store:
            bulk.load(open_table(store, self.dim, 16), self._rows(ids, ranks))
            store.checkpoint(unfinished / "checkpoint")
        shutil.rmtree(unfinished / "store")
        peer = RocksLoop(unfinished / "by-hand", self.dim, LEARNING_RATE, EPSILON, 4 * MIN_MEMORY)
        peer.ingest((rows.keys, peer.untrained(rows.values)) for rows in self._rows(ids, ranks))
        until_idle()
        peer.close()
        unfinished.rename(self.place)

    def delete(self) -> None:
        """Free the disk space."""
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def nbytes(self) -> int:
        """The bytes of the table files of both sides."""
        return sum(path.stat().st_size for path in table_files(self.place))

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to restore."""
        return self.place / "checkpoint"

    def link_by_hand(self, path: Path) -> None:
        """Make the other side's database at path: table files are linked, all others copied."""
        shutil.copytree(self.place / "by-hand", path, copy_function=_link_or_copy)

    def _rows(self, ids: Ids, ranks: Ids) -> Iterator[bulk.Rows]:
        each = USES * self.rows / np.log(self.rows + 1)
        for start in range(0, self.rows, LOAD_BATCH):
            keys, at = ids[start : start + LOAD_BATCH], ranks[start : start + LOAD_BATCH]
            yield bulk.Rows(keys, values_of(keys, self.dim), scores=np.rint(each / (at + 1)))


def most_popular(rows: int, batch: int) -> Iterator[Ids]:
    """Yield the ids of the `rows` most popular rows, the most popular last, in sorted batches."""
    for last in range(rows, 0, -batch):
        yield np.sort(ids_of(np.arange(max(0, last - batch), last, dtype=np.int64)))


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".sst"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
