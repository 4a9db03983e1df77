"""The two sides of `kvemb bench tier`, each with its own table: kvemb, and a loop written by hand on rocksdict.

Both start with the same rows and the same memory, and with their caches full of the most popular rows.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import kvemb
from kvemb.tools.bench.data import Floats, Ids, Zipf, ids_of
from kvemb.tools.bench.measure import scratch, until_idle
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.kernel import fill
from kvemb.tools.bench.tier.tables import TableOnDisk, most_popular
from kvemb.tools.bench.train_by_hand import RocksLoop
from kvemb.tools.bench.trained import EPSILON, LEARNING_RATE, open_table, target, train_step
from kvemb.tools.stopping import check

FILL_BATCH = 1 << 16


class Side(ABC):
    """A table that is trained. folder: of its files. steps: taken since it was made.

    read: reads rows, so that they are in the cache. values: returns the rows of distinct ids without changing the
    table. save: makes a checkpoint. close: releases the files.
    """

    read: Callable[[Ids], object]
    values: Callable[[Ids], Floats]
    save: Callable[[Path], object]
    close: Callable[[], None]

    def __init__(self, table: TableOnDisk, folder: Path, memory: int) -> None:
        self.folder, self.steps = folder, 0
        self._dim, self._memory, self._pull = table.dim, memory, target(table.dim)

    def train(self, batches: list[Ids], seconds: float) -> list[float]:
        """Take a step on each batch, until so many seconds have passed; returns the seconds of each step."""
        taken: list[float] = []
        began = now = time.perf_counter()
        for ids, upcoming in zip(batches, [*batches[1:], None], strict=True):
            if now - began >= seconds:
                break
            self._step(ids, upcoming)
            before, now = now, time.perf_counter()
            taken.append(now - before)
        self.steps += len(taken)
        return taken

    def reopen(self, *, warm: bool) -> tuple[float, float]:
        """Close the table, and open it again; returns the seconds of both. warm: load rows that were hot, if known."""
        began = time.perf_counter()
        self.close()
        closed = time.perf_counter()
        self._open(warm=warm)
        return closed - began, time.perf_counter() - closed

    @abstractmethod
    def _open(self, *, warm: bool) -> None:
        """Open the table, and set the calls above."""

    @abstractmethod
    def _step(self, ids: Ids, upcoming: Ids | None) -> None: ...

    def rows_waiting(self) -> int:
        """Return how many rows wait in memory to be written, not counting memtables."""
        return 0


class Kvemb(Side):
    """The store, with mapped files, the default; each step prefetches the next batch. Reading makes rows hot."""

    def __init__(self, table: TableOnDisk, folder: Path, hot_rows: int, memory: int) -> None:
        super().__init__(table, folder, memory)
        self._hot_rows = hot_rows
        kvemb.restore(table.checkpoint, folder, memory_budget=memory).close()
        self._open(warm=False)

    def _open(self, *, warm: bool) -> None:
        store = kvemb.open(self.folder, memory_budget=self._memory, warm=warm)
        self.table = open_table(store, self._dim, self._hot_rows)
        self.read, self.values = self.table.lookup, partial(self.table.lookup, touch=False)
        self.save, self.close = store.checkpoint, store.close

    def _step(self, ids: Ids, upcoming: Ids | None) -> None:
        train_step(self.table, ids, upcoming, self._pull)

    def rows_waiting(self) -> int:
        return self.table.stats.rows_waiting


class ByHand(Side):
    """The loop of kvemb.tools.bench.train_by_hand."""

    def __init__(self, table: TableOnDisk, folder: Path, memory: int) -> None:
        super().__init__(table, folder, memory)
        table.link_by_hand(folder)
        self._open(warm=False)

    def _open(self, *, warm: bool) -> None:
        self._loop = RocksLoop(self.folder, self._dim, LEARNING_RATE, EPSILON, self._memory)
        self.read = self.values = self._loop.values
        self.save, self.close = self._loop.checkpoint, self._close

    def _step(self, ids: Ids, upcoming: Ids | None) -> None:
        self._loop.train(ids, self._pull)

    def _close(self) -> None:
        self._loop.flush()
        self._loop.close()


@contextmanager
def both(table: TableOnDisk, case: Case, settings: Settings, folder: Path) -> Iterator[tuple[Kvemb, ByHand]]:
    """Yield both sides, filled with the most popular rows, with as many of their files in the page cache as fit."""
    memory = settings.memory(case.hot_rows)
    with (
        scratch(folder) as place,
        closing(Kvemb(table, place / "kvemb", case.hot_rows, memory)) as ours,
        closing(ByHand(table, place / "by-hand", memory)) as theirs,
    ):
        for side in (ours, theirs):
            fill(side.folder)
            for ids in most_popular(case.hot_rows, FILL_BATCH):
                side.read(ids)
                check()
        until_idle()
        yield ours, theirs


def in_page_cache(table: TableOnDisk, memory: int) -> bool:
    """Whether the files of both sides fit the page cache, in addition to the memory of both."""
    return table.nbytes + 2 * memory < 0.8 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def draw(case: Case, settings: Settings, windows: int, seed: int) -> list[list[Ids]]:
    """Return the batches of ids of so many windows, a function of the seed."""
    popularity = Zipf(case.rows, case.zipf, seed)
    return [[ids_of(popularity.sample(settings.batch)) for _ in range(settings.steps)] for _ in range(windows)]
