"""A full hot table in one GPU's memory, without other tiers: finds batches of its keys, and inserts new rows.

Keys and rows are on the GPU before a call, and results stay there. Two times are measured: the GPU's, by CUDA events
around calls that the host does not wait for; and the host's, which waits at the end of each call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, Zipf, ids_of
from kvemb.tools.bench.measure import scratch

EXPONENT = 1.05
# HierarchicalKV's benchmark looks for keys of the last inserted batch, and for missing keys. The share of the former:
HIERARCHICAL_HITS = 0.6
# A table counts as full after this many calls that insert hardly more rows than they evict: the last buckets take long.
STALLED = 8
UNIFORM, ZIPF, HIERARCHICAL = "uniform keys", f"keys by a Zipf law, {EXPONENT}", "60% of keys from the last batch"


class FullTable:
    """A table of so many cells, all in use, and `calls` batches of each kind of keys, and of new rows.

    Rows have ascending scores, so the oldest are evicted first.
    """

    def __init__(self, device: str, cells: int, dim: int, batch: int, calls: int) -> None:
        with scratch(None) as path, kvemb.open(path / "store") as store:
            probe: Any = store.get_variable("probe", dim=dim, devices=device, hot_rows=1).tables[0]
            cells = -(-cells // probe.cells_per_bucket) * probe.cells_per_bucket
            self._table = type(probe)(probe.schema, cells, cells, device=device)
        self.batch, self.calls, self.row_bytes = batch, calls, self._table.schema.row_bytes
        self._cells, self._there = self._table.cells, self._table.device_rows
        self.device = self._cells.queue.device
        self._next, self._draw = 0, np.random.default_rng(0)
        self._pieces = [self._piece(f"new rows {at}") for at in range(calls)]
        self._fill()
        rows: Floats = np.zeros((batch, dim), np.float32)
        self._out, self._source = self._there.array(rows), self._there.array(rows)
        self._positions = self._there.array(self._draw.permutation(batch))
        self._keys = {name: [self._there.array(each) for each in of] for name, of in self._batches().items()}

    @property
    def buckets(self) -> int:
        """The number of buckets of the table."""
        return int(self._table.capacity_rows // self._table.cells_per_bucket)

    @property
    def load(self) -> float:
        """The share of cells that are in use."""
        return float(self._table.size / self._table.capacity_rows)

    # Making it.

    def _piece(self, name: str) -> tuple[int, int]:
        """Return the address of a batch of rows, all zeros, and their pitch."""
        none = self._table.read(np.empty(0, np.int64))
        address, pitch = self._cells.buffers.put_rows(name, type(none)(self._table.schema, self.batch))
        return int(address), int(pitch)

    def _renew(self, piece: tuple[int, int]) -> None:
        """Replace the keys of a batch by new ones with higher scores: the first two columns of rows."""
        numbers: Ids = np.arange(self._next, self._next + self.batch, dtype=np.int64)
        address, pitch = piece
        self._cells.queue.upload(address, ids_of(numbers))
        self._cells.queue.upload(address + 8 * pitch, numbers.astype(np.float64))
        self._next += self.batch

    def _fill(self) -> None:
        table, stalled = self._table, 0
        while table.size < table.capacity_rows and stalled < STALLED:
            self._renew(self._pieces[0])
            done = self._cells.insert(*self._pieces[0], self.batch, by_score=False, clean_too=False, evicting=True)
            table.size += done.fresh
            stalled = 0 if done.fresh > self.batch // 64 else stalled + 1

    def _batches(self) -> dict[str, list[Ids]]:
        """Return batches of keys by name."""
        keys, draw = self._table.keys(), self._draw
        zipf = Zipf(len(keys), EXPONENT, seed=1)
        last, others = np.arange(self._next - self.batch, self._next), np.arange(self._next, self._next + self.batch)
        found: dict[str, list[Ids]] = {UNIFORM: [], ZIPF: [], HIERARCHICAL: []}
        for _ in range(self.calls):
            found[UNIFORM].append(keys[draw.integers(0, len(keys), self.batch)])
            # Ranks are spread over the table: neighbours in popularity must not be neighbours in a bucket.
            spread = ids_of(zipf.sample(self.batch)).view(np.uint64) % np.uint64(len(keys))
            found[ZIPF].append(keys[spread.astype(np.int64)])
            hits = draw.permutation(self.batch) < self._hits(HIERARCHICAL)
            found[HIERARCHICAL].append(ids_of(np.where(hits, draw.permutation(last), others)))
        return found

    def _hits(self, keys: str) -> int:
        """Return how many keys of a batch of this kind are in the table."""
        return round(HIERARCHICAL_HITS * self.batch) if keys == HIERARCHICAL else self.batch

    # Timing.

    def on_gpu(self, work: Callable[[], None]) -> float:
        """Return the GPU's seconds for work that the host starts without waiting."""
        device, given = self.device, self._there.given(self._out)
        start, end = device.event(timed=True), device.event(timed=True)
        with self._there.on(given):
            device.record(start, given.stream)
            work()
            device.record(end, given.stream)
        return float(device.seconds(start, end))

    def start_finds(self, keys: str) -> None:
        """Start to find each batch of this kind of keys, with their rows."""
        out = self._there.given(self._out).address
        for batch in self._keys[keys]:
            self._cells.start_find(self._there.given(batch).address, self.batch, out=out)

    def find_seconds(self, keys: str) -> list[float]:
        """Return the seconds of each call, including the wait."""
        out, taken = self._there.given(self._out).address, []
        for batch in self._keys[keys]:
            given, start = self._there.given(batch), time.perf_counter()
            with self._there.on(given):
                misses = self._cells.find(given.address, self.batch, out=out)
            taken.append(time.perf_counter() - start)
            if misses != self.batch - self._hits(keys):
                raise AssertionError(f"{misses} keys were not found, so the measurement is not valid")
        return taken

    def start_copies(self) -> None:
        """Start to copy the same number of rows, each from a random place."""
        given, out, chosen = (self._there.given(each) for each in (self._source, self._out, self._positions))
        size, unit = (self.batch, self.row_bytes), self._cells.unit(out.address)
        for _ in range(self.calls):
            self._cells.run_plain("take_rows", 32 * self.batch, given.address, chosen.address, *size, unit, out.address)

    def renew(self) -> None:
        """Put new rows on the GPU for the next inserting calls."""
        for piece in self._pieces:
            self._renew(piece)
        self._there.finish()

    def start_inserts(self) -> None:
        """Start to insert each batch of new rows, which evict others."""
        for address, pitch in self._pieces:
            self._cells.start_insert(address, pitch, self.batch, by_score=False, clean_too=True, evicting=True)

    def insert_seconds(self) -> list[float]:
        """Return the seconds of each call, including the wait."""
        taken = []
        for address, pitch in self._pieces:
            start = time.perf_counter()
            done = self._cells.insert(address, pitch, self.batch, by_score=False, clean_too=True, evicting=True)
            taken.append(time.perf_counter() - start)
            self._table.size += done.fresh
            if done.leaving < self.batch // 2:
                raise AssertionError("the table was not full, so the measurement is not valid")
        return taken
