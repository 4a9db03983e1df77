"""`kvemb bench larger`: training of a table that neither memory nor the page cache can hold, beside np.memmap.

Run it where memory is less than the table: in a container, or with `systemd-run --scope -p MemoryMax=6G`. Both sides
warm up for minutes, since each of them finds out which rows are used; so the figures are those of the last quarter of
their time. np.memmap with MADV_RANDOM is what is used without a store; without that advice, read-ahead would bring 16
pages for one. Each side runs in a process of its own, with the page cache as the other side left it.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

import kvemb
from kvemb.checks.usable_memory import memory_bytes
from kvemb.tools.bench.data import Floats, Zipf, ids_of, values_of
from kvemb.tools.bench.measure import scratch, take_turns, until_idle
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Exponent, Folder, Rows, Runs
from kvemb.tools.bench.processes import result_of
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import EPSILON, LEARNING_RATE, LOAD_BATCH, load, open_table, record_bytes
from kvemb.tools.limits import MAX_RUNS

MIN_SPEED, QUARTERS = 3.0, 4
# Rows that are used much are not neighbours in the array either.
SPREAD = 2_654_435_761


def run(
    rows: Rows = 1 << 24,
    dim: Dim = 64,
    batch: Batch = 16_384,
    zipf: Exponent = 1.0,
    seconds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Seconds for which each side trains.")] = 200,
    runs: Runs = 1,
    budget_mib: BudgetMib = 2048,
    folder: Folder = None,
) -> Report:
    """Train a table larger than memory, which must be less than the table. Peer: the same steps on np.memmap."""
    report, table_bytes = Report(), rows * record_bytes(dim)
    with scratch(folder) as path:
        _make(path, rows, dim, budget_mib)
        shared = {"path": str(path), "rows": rows, "dim": dim, "batch": batch, "zipf": zipf, "seconds": seconds}

        def side(function: str, **more: int) -> list[float]:
            found: list[float] = result_of(__name__, function, **shared, **more)
            return found

        ours, memmap = take_turns(
            [
                lambda run: side("train_store", seed=run, budget_mib=budget_mib),
                lambda run: side("train_memmap", seed=run),
            ],
            runs,
        )
    larger = memory_bytes() < table_bytes and zipf > 0
    report.facts["share_in_memory"] = round(min(1.0, memory_bytes() / table_bytes), 3)
    rates = compare("trained", "rows/s", [each[0] for each in ours], "np.memmap", [each[0] for each in memmap])
    report.lines.append(rates.ratio_at_least(MIN_SPEED if larger else None))
    costs = [[each[1] for each in side] for side in (ours, memmap)]
    report.lines.append(compare("the same", "us CPU a row", costs[0], "np.memmap", costs[1]))
    for number in range(QUARTERS):
        report.facts[f"rows_per_second_in_quarter_{number + 1}"] = [
            round(each[2 + number]) for each in (*ours, *memmap)
        ]
    return report


def _make(path: Path, rows: int, dim: int, budget_mib: int) -> None:
    """Write the table as a store, and as a file of an array with an accumulator beside each value."""
    with kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        load(open_table(store, dim), rows)
        until_idle()
    table, back = np.memmap(path / "table.f4", np.float32, "w+", shape=(rows, 2 * dim)), pow(SPREAD, -1, rows)
    for at in range(0, rows, LOAD_BATCH):
        ranks = np.arange(at, min(rows, at + LOAD_BATCH)) * back % rows
        table[at : at + len(ranks), :dim] = values_of(ids_of(ranks), dim)
    table.flush()


def _places(ranks: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    return ranks * (SPREAD % rows) % rows


# Each in a process of its own. They return rows a second and microseconds of CPU time for each row, both of the last
# quarter; then the rows a second of each quarter.


def train_store(
    path: str, rows: int, dim: int, batch: int, zipf: float, seconds: float, seed: int, budget_mib: int
) -> list[float]:
    """Train the rows in a store."""
    grads = _gradients(batch, dim)
    with kvemb.open(Path(path) / "store", memory_budget=budget_mib << 20) as store:
        table = store.variables["trained"]

        def step(ranks: npt.NDArray[np.int64]) -> None:
            ids = ids_of(ranks)
            table.lookup(ids)
            table.apply_gradients(ids, grads)

        return _by_quarter(step, Zipf(rows, zipf, seed), batch, seconds)


def train_memmap(path: str, rows: int, dim: int, batch: int, zipf: float, seconds: float, seed: int) -> list[float]:
    """Train the rows of a mapped array: of equal rows, one gradient counts, which is cheaper than to add them up."""
    grads = _gradients(batch, dim)
    with open(Path(path) / "table.f4", "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    mapped.madvise(mmap.MADV_RANDOM)
    table = np.frombuffer(mapped, np.float32).reshape(rows, 2 * dim)

    def step(ranks: npt.NDArray[np.int64]) -> None:
        places = np.unique(_places(ranks, rows))
        found, given = table[places], grads[: len(places)]
        found[:, dim:] += given * given
        found[:, :dim] -= LEARNING_RATE * given / (np.sqrt(found[:, dim:]) + EPSILON)
        table[places] = found

    return _by_quarter(step, Zipf(rows, zipf, seed), batch, seconds)


def _gradients(batch: int, dim: int) -> Floats:
    return np.random.default_rng(3).standard_normal((batch, dim), dtype=np.float32) * np.float32(0.01)


def _by_quarter(
    step: Callable[[npt.NDArray[np.int64]], None], popularity: Zipf, batch: int, seconds: float
) -> list[float]:
    rates, cpu = [], 0.0
    for _ in range(QUARTERS):
        steps, began, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds / QUARTERS:
            step(popularity.sample(batch))
            steps += 1
        rates.append(steps * batch / (time.perf_counter() - began))
        cpu = (time.process_time() - used) / (steps * batch) * 1e6
    return [rates[-1], cpu, *rates]
