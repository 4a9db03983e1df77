"""A hot table alone, in one GPU's memory, full: keys found with their rows, and rows inserted for which others leave.

What is timed is what HierarchicalKV's benchmark times: keys and rows are on the GPU before the call, results stay
there, and the host waits at the end of each call. Beside the rows that a find moves stands a plain copy on that GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, ids_of
from kvemb.tools.bench.measure import Work, scratch, take_timed_turns
from kvemb.tools.bench.results import Line, Spread

# What a GPU must reach, in billions of keys a second, found and inserted, with rows of 64 numbers.
BARS = {"H200": (4.0, 1.0), "H100": (2.8, 0.7)}
BAR_DIM = 64
# Rows that the table is filled with at a time.
FILL_ROWS = 1 << 20
# Bytes that finding one key moves, but for its row: the bucket's digests and its chunk's address, a sector of 32 bytes
# with the key, the key given, and its cell.
FOUND_BYTES = 128 + 32 + 32 + 8 + 8


def measure(device: str, cells: int, dim: int, batch: int, calls: int, runs: int) -> tuple[list[Line], dict[str, Any]]:
    """Return lines and facts. cells: of the table; batch: keys of a call; calls: of each kind in a run."""
    with scratch(None) as path, kvemb.open(path / "store") as store:
        probe: Any = store.get_variable("probe", dim=dim, devices=device, hot_rows=1).tables[0]
        cells = -(-cells // probe.cells_per_bucket) * probe.cells_per_bucket
        table = type(probe)(probe.schema, cells, cells, device=device)
        bench = _Filled(table, batch, calls)
    found, copied = take_timed_turns((bench.find, bench.copy), runs)
    name = table.cells.queue.device.name()
    rates = [calls * batch / each.wall for each in found]
    moved = FOUND_BYTES + 2 * bench.row_bytes
    copying = [calls * batch * 2 * bench.row_bytes / each.wall for each in copied]
    lines = [
        _barred(f"find with rows, dim {dim}", rates, name, 0, dim),
        Line(
            f"bytes moved by that find ({moved} a key)",
            "bytes/s",
            Spread.of(rate * moved for rate in rates),
            "rows copied by number",
            Spread.of(copying),
            Spread.of(rate * moved / copy for rate, copy in zip(rates, copying, strict=True)),
        ),
        _barred(f"insert and evict, dim {dim}", list(bench.insert_rates(runs)), name, 1, dim),
    ]
    return lines, {"gpu": name, "load": table.size / table.capacity_rows, "cells": table.capacity_rows}


def _barred(name: str, rates: list[float], gpu: str, which: int, dim: int) -> Line:
    line = Line(name, "keys/s", Spread.of(rates))
    for model, bars in BARS.items():
        if model in gpu and dim == BAR_DIM:
            bar = bars[which] * 1e9
            return replace(line, bar=f"≥ {bars[which]:g} billion on an {model}", met=line.ours.median >= bar)
    return line


class _Filled:
    """A full table, and batches of its keys."""

    def __init__(self, table: Any, batch: int, calls: int) -> None:
        self._table, self._batch, self._calls = table, batch, calls
        self._next, draw, device_rows = 0, np.random.default_rng(0), table.device_rows
        self.row_bytes = table.schema.dim * 4
        stalled = 0
        while table.size < table.capacity_rows and stalled < 8:  # the last buckets to be full take long
            before = table.size
            table.insert(self._rows(min(FILL_ROWS, table.capacity_rows)))
            stalled = 0 if table.size > before + table.capacity_rows // 1000 else stalled + 1
        keys = table.keys()
        chosen = [keys[draw.integers(0, len(keys), batch)] for _ in range(calls)]
        self._keys = [device_rows.array(each) for each in chosen]
        self._places = [draw.integers(0, len(keys), batch) for _ in range(calls)]
        rows: Floats = np.empty((batch, table.schema.dim), np.float32)
        self._out, self._source = device_rows.array(rows), device_rows.array(rows)
        self._positions = device_rows.array(draw.permutation(batch))

    def _rows(self, count: int) -> Any:
        """Return new rows, whose scores are higher than those before."""
        none = self._table.read(np.empty(0, np.int64))
        rows = type(none)(self._table.schema, count)
        numbers: Ids = np.arange(self._next, self._next + count, dtype=np.int64)
        rows.keys[:], rows.scores[:] = ids_of(numbers), numbers
        self._next += count
        return rows

    def find(self, run: int) -> None:
        """Find each batch."""
        device_rows = self._table.device_rows
        out = device_rows.given(self._out)
        for keys in self._keys:
            given = device_rows.given(keys)
            with device_rows.on(given):
                if len(device_rows.lookup(given, out, None, None, 0.0).keys):
                    raise AssertionError("a key was not found, so the measurement is not valid")

    def copy(self, run: int) -> None:
        """Copy as many rows, each from a random place."""
        cells, device_rows = self._table.cells, self._table.device_rows
        given, out, chosen = (device_rows.given(each) for each in (self._source, self._out, self._positions))
        with device_rows.on(given):
            for _ in range(self._calls):
                arguments = given.address, chosen.address, self._batch, self.row_bytes, cells.unit, out.address
                cells.run_plain("take_rows", 32 * self._batch, *arguments)
        device_rows.finish()

    def insert_rates(self, runs: int) -> Iterator[float]:
        """Yield keys a second of each run. New rows are put on the GPU before it."""
        cells, spent = self._table.cells, []

        def insert(pieces: list[tuple[int, int]]) -> Work:
            def work(run: int) -> None:
                for address, pitch in pieces:
                    done = cells.insert(address, pitch, self._batch, by_score=False, clean_too=True, evicting=True)
                    spent.append(done.leaving)

            return work

        for _ in range(runs):
            pieces = [cells.buffers.put_rows(f"rows {at}", self._rows(self._batch)) for at in range(self._calls)]
            ((taken,),) = take_timed_turns((insert(pieces),), 1)
            yield self._calls * self._batch / taken.wall
        if min(spent) < self._batch // 2:
            raise AssertionError("the table was not full, so the measurement is not valid")
