"""`kvemb bench disk`: lookups while the page cache has nothing of the table, beside what the disk itself can do.

Before each run all files are evicted from the page cache, and each side runs in a process of its own, because pages
that a process maps cannot be evicted. The disk is measured by as many threads as READS, each of which reads 4 KiB at a
time from random places. np.memmap with MADV_RANDOM is what is used without a store; without that advice, read-ahead
would bring 16 pages for one. A table that the page cache cannot hold behaves like the first reads after an eviction.
"""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import scratch, take_turns, until_idle
from kvemb.tools.bench.options import Batch, Batches, BudgetMib, Dim, Folder, Rows, Runs
from kvemb.tools.bench.processes import result_of
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import LOAD_BATCH, load, open_table

READS, PAGE_BYTES = 64, 4096
MIN_OF_DISK, MIN_OF_MEMMAP = 0.7, 2.0


def run(
    rows: Rows = 4_000_000,
    dim: Dim = 64,
    batch: Batch = 16_384,
    batches: Batches = 4,
    runs: Runs = 5,
    budget_mib: BudgetMib = 64,
    folder: Folder = None,
) -> Report:
    """Measure lookups with an empty page cache. Peers: the disk's own random reads, and np.memmap."""
    report = Report()
    with scratch(folder) as path:
        _make(path, rows, dim, budget_mib)
        shared = {"path": str(path), "rows": rows, "batch": batch, "batches": batches}

        def side(function: str, **more: int) -> list[float]:
            _evict(path)
            found: list[float] = result_of(__name__, function, **shared, **more)
            return found

        ours, memmap, disk = take_turns(
            [
                lambda run: side("look_up", seed=run, budget_mib=budget_mib),
                lambda run: side("index_memmap", seed=run, dim=dim),
                lambda run: side("read_pages", seed=run),
            ],
            runs,
        )
    rates, costs = zip(*ours, strict=True)
    of_disk = compare(
        "lookup, page cache empty", "rows/s", rates, f"{READS} reads of 4 KiB", [each[0] for each in disk]
    )
    of_memmap = compare("the same", "rows/s", rates, "np.memmap", [each[0] for each in memmap])
    cpu = compare("the same", "us CPU a row", costs, "np.memmap", [each[1] for each in memmap])
    report.lines = [of_disk.ratio_at_least(MIN_OF_DISK), of_memmap.ratio_at_least(MIN_OF_MEMMAP), cpu]
    return report


def _make(path: Path, rows: int, dim: int, budget_mib: int) -> None:
    """Write the table as a store, and as a file of an array."""
    with kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        load(open_table(store, dim), rows)
        until_idle()
    table, at = np.memmap(path / "table.f4", np.float32, "w+", shape=(rows, dim)), 0
    for ids in batches_of_ids(rows, LOAD_BATCH):
        table[at : at + len(ids)] = values_of(ids, dim)
        at += len(ids)
    table.flush()


def _evict(path: Path) -> None:
    """Drop all files below a folder from the page cache, as far as nobody maps them."""
    for file in path.rglob("*"):
        if file.is_file() and not file.is_symlink():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


# Each in a process of its own. They return rates a second, and microseconds of CPU time for each row.


def look_up(path: str, rows: int, batch: int, batches: int, seed: int, budget_mib: int) -> list[float]:
    """Look rows up in a store that is opened read-only; the first batch brings filters and indexes."""
    random = np.random.default_rng(seed)
    with kvemb.open(Path(path) / "store", read_only=True, memory_budget=budget_mib << 20) as store:
        table = store.variables["trained"]
        given = [ids_of(random.integers(0, rows, batch)) for _ in range(batches + 1)]
        table.lookup(given[0])
        began, used = time.perf_counter(), time.process_time()
        for ids in given[1:]:
            table.lookup(ids)
        return _figures(began, used, batch * batches)


def index_memmap(path: str, rows: int, batch: int, batches: int, seed: int, dim: int) -> list[float]:
    """Read rows of a mapped array."""
    random = np.random.default_rng(seed)
    with open(Path(path) / "table.f4", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    table = np.frombuffer(mapped, np.float32).reshape(rows, dim)
    given = [random.integers(0, rows, batch) for _ in range(batches + 1)]
    table[given[0]]
    began, used = time.perf_counter(), time.process_time()
    for places in given[1:]:
        table[places]
    return _figures(began, used, batch * batches)


def read_pages(path: str, rows: int, batch: int, batches: int, seed: int) -> list[float]:
    """Read pages at random, READS at a time."""
    random, file = np.random.default_rng(seed), os.open(Path(path) / "table.f4", os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    pages = max(1, os.fstat(file).st_size // PAGE_BYTES)
    places = (random.integers(0, pages, batch * batches) * PAGE_BYTES).tolist()

    def read(part: int) -> None:
        for place in places[part::READS]:
            os.pread(file, PAGE_BYTES, place)

    with ThreadPoolExecutor(READS) as pool:
        began, used = time.perf_counter(), time.process_time()
        list(pool.map(read, range(READS)))
        return _figures(began, used, len(places))


def _figures(began: float, used: float, count: int) -> list[float]:
    return [count / (time.perf_counter() - began), (time.process_time() - used) / count * 1e6]
