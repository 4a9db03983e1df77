"""`kvemb bench checkpoint`: the bytes that a checkpoint writes, how long it delays training, and the cost of a restore.

Bytes are those of files that are not shared with the previous checkpoint. The pause is the longest call of a thread
that trains without a break, from checkpoint(block=False) until the checkpoint is complete; it is shown beside the
longest call while no checkpoint is written. A standstill is how long another thread, which has nothing to do with the
store, waits for the GIL.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import batches_of_ids, ids_of, values_of
from kvemb.tools.bench.hot.resident import array_of
from kvemb.tools.bench.measure import new_bytes, scratch, seconds, until_idle
from kvemb.tools.bench.options import Batch, Dim, Folder, Rows, Runs, Share
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import LOAD_BATCH, load, open_table, record_bytes, target, train_step
from kvemb.tools.limits import MAX_MIB, MAX_ROWS

VARIABLES = [1, 26, 300]
MAX_WRITTEN, MAX_UNCHANGED_BYTES = 2.0, 100_000
MAX_PAUSE_MS, MAX_RESTORE_S = 100.0, 1.0
MAX_STANDSTILL_MS, STANDING_DIM, SLEEP_SECONDS = {26: 10.0, 300: 30.0}, 16, 0.0005


def run(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    share: Share = 0.01,
    hot_mib: Annotated[
        int, typer.Option(min=1, max=MAX_MIB, help="For the pause: size in MiB of the hot tier, all dirty.")
    ] = 512,
    batch: Batch = 8_192,
    dirty_rows: Annotated[
        int, typer.Option(min=1, max=MAX_ROWS, help="For the standstill: dirty rows of all variables.")
    ] = 200_000,
    variables: Annotated[
        list[int],
        typer.Option(min=1, max=1000, help="For the standstill: variables. May be given several times."),
    ] = VARIABLES,
    runs: Runs = 3,
    folder: Folder = None,
) -> Report:
    """Measure checkpoints: bytes written, pauses of training, standstills, restores. Peers: np.load and torch.load."""
    report = Report()
    with scratch(folder) as folder_path:
        _bytes_and_restore(report, folder_path, rows, dim, share, runs)
    with scratch(folder) as folder_path:
        _pause(report, folder_path, dim, hot_mib, batch, runs)
    for count in variables:
        _standstills(report, count, dirty_rows, runs, folder)
    return report


# Bytes, restores and deltas.


def _bytes_and_restore(report: Report, folder_path: Path, rows: int, dim: int, share: float, runs: int) -> None:
    chance = np.random.default_rng(7)
    written, unchanged, delta_rates, changed_rows = [], [], [], int(rows * share)
    with kvemb.open(folder_path / "store", memory_budget="512MiB") as store:
        table = open_table(store, dim)
        load(table, rows)
        store.flush()
        until_idle()  # waits for the compactions that loading caused
        before = store.checkpoint(folder_path / "0")
        for number in range(1, runs + 1):
            ids = ids_of(chance.choice(rows, changed_rows, replace=False))
            table.apply_gradients(ids, values_of(ids, dim))
            after = store.checkpoint(folder_path / f"{number}")
            written.append(new_bytes(after, before))
            began = time.perf_counter()
            reported = sum(len(part.keys) for part in after.changes(before))
            delta_rates.append(changed_rows / (time.perf_counter() - began))
            if reported != changed_rows:
                raise AssertionError(f"{changed_rows} rows changed, but the delta has {reported}")
            again = store.checkpoint(folder_path / f"{number}-again")
            unchanged.append(new_bytes(again, after))
            shutil.rmtree(before)
            shutil.rmtree(after)
            before = again
        began = time.perf_counter()
        whole = sum(len(keys) for keys, _ in table.export_batches())
        export_rate = rows / (time.perf_counter() - began)
        if whole != rows:
            raise AssertionError(f"{rows} rows were loaded, but the table has {whole}")
    changed = [record_bytes(dim) * changed_rows] * runs
    line = compare("written by a checkpoint", "bytes", written, "the changed records", changed)
    report.lines.append(line.ratio_at_most(MAX_WRITTEN))
    report.lines.append(compare("written with no change", "bytes", unchanged).at_most(MAX_UNCHANGED_BYTES))
    whole_table = "export of the whole table"
    report.lines.append(compare("delta of what changed", "rows/s", delta_rates, whole_table, [export_rate] * runs))
    _restores(report, folder_path, before, dim, runs)


def _restores(report: Report, folder_path: Path, large: kvemb.Checkpoint, dim: int, runs: int) -> None:
    """Time restores of the table and of one with a sixteenth of its rows, and loads of the same rows as arrays."""
    rows = large.variables["trained"].rows
    with kvemb.open(folder_path / "small-store", memory_budget="512MiB") as store:
        load(open_table(store, dim), rows // 16)
        small = store.checkpoint(folder_path / "small")
    saved = _saved_arrays(folder_path, rows, dim)
    taken: dict[str, list[float]] = {name: [] for name in ("large", "small", *saved)}
    for _ in range(runs):
        for name, checkpoint in (("large", large), ("small", small)):
            taken[name].append(seconds(partial(_restore, checkpoint, folder_path / "restored")))
            shutil.rmtree(folder_path / "restored")
        for name, load_arrays in saved.items():
            taken[name].append(seconds(load_arrays))
    report.lines.append(compare("restore", "s", taken["large"]).at_most(MAX_RESTORE_S))
    report.lines.append(compare("restore", "s", taken["large"], f"of {rows // 16:,} rows", taken["small"]))
    for name in saved:
        report.lines.append(compare("restore", "s", taken["large"], f"{name} of the same rows", taken[name]))


def _restore(checkpoint: kvemb.Checkpoint, path: Path) -> None:
    """Restore, open the variable, read a row, close."""
    with kvemb.restore(checkpoint, path, memory_budget="512MiB") as store:
        store.variables["trained"].lookup(ids_of(np.zeros(1, np.int64)), touch=False)


def _saved_arrays(folder_path: Path, rows: int, dim: int) -> dict[str, Callable[[], object]]:
    """Save keys, rows and slots as arrays; returns functions that load them, torch.load only if it is installed."""
    ids = ids_of(np.arange(rows))
    table = np.zeros((rows, 2 * dim), np.float32)
    table[:, :dim] = array_of(rows, dim)
    np.save(folder_path / "ids.npy", ids)
    np.save(folder_path / "table.npy", table)
    loaders: dict[str, Callable[[], object]] = {
        "np.load": lambda: (np.load(folder_path / "ids.npy"), np.load(folder_path / "table.npy")),
    }
    try:
        import torch
    except ImportError:
        return loaders
    torch.save({"ids": torch.from_numpy(ids), "table": torch.from_numpy(table)}, folder_path / "table.pt")
    return {**loaders, "torch.load": lambda: torch.load(folder_path / "table.pt")}


# The pause.


def _pause(report: Report, folder_path: Path, dim: int, hot_mib: int, batch: int, runs: int) -> None:
    """Train on entirely dirty hot tiers, and with batches that spill, while a checkpoint is written."""
    hot_rows = (hot_mib << 20) // record_bytes(dim)
    for name, tables, keys, hot, budget_mib in (
        ("all hot", 1, hot_rows * 8 // 10, hot_rows, 2 * hot_mib + 256),
        ("spilling", 1, hot_rows * 2, hot_rows, 2 * hot_mib + 256),
        ("two tables that fill the budget", 2, hot_rows // 2, None, max(4, hot_mib // 4)),
    ):
        pauses, quiet, whole = [], [], []
        with kvemb.open(folder_path / name.replace(" ", "-"), memory_budget=f"{budget_mib}MiB") as store:
            trained = [open_table(store, dim, hot, f"table {number}") for number in range(tables)]
            for table in trained:
                load(table, keys)
            steps = [_timed_step(table, keys, batch) for table in trained]
            for number in range(runs):
                for table in trained:
                    for ids in batches_of_ids(keys, LOAD_BATCH):  # makes all dirty
                        table.apply_gradients(ids, values_of(ids, dim))
                quiet.append(1000 * max(step() for step in steps * 50))
                until_idle()
                began = time.perf_counter()
                pending = store.checkpoint(folder_path / f"{name}-{number}", block=False)
                longest = time.perf_counter() - began
                while not pending.done():
                    longest = max(longest, *(step() for step in steps))
                whole.append(time.perf_counter() - began)
                pauses.append(1000 * longest)
                shutil.rmtree(pending.result())
        most = MAX_PAUSE_MS if name == "all hot" else None
        report.lines.append(compare(f"longest call during a checkpoint, {name}", "ms", pauses).at_most(most))
        report.facts[f"longest call without one, {name}"] = f"{float(np.median(quiet)):.1f} ms"
        report.facts[f"until it is complete, {name}"] = f"{float(np.median(whole)):.2f} s"


def _timed_step(table: kvemb.Variable, keys: int, batch: int) -> Callable[[], float]:
    """Return a function that takes a step on random keys, and returns its seconds."""
    chance, pull = np.random.default_rng(11), target(table.dim)

    def step() -> float:
        ids = ids_of(chance.integers(0, keys, batch))
        return seconds(partial(train_step, table, ids, None, pull))

    return step


# The standstill.


class _Watch:
    """A context manager; longest_ms: the longest standstill of a thread in the block, in milliseconds."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.perf_counter()
            time.sleep(SLEEP_SECONDS)
            self.longest_ms = max(self.longest_ms, 1000 * (time.perf_counter() - began - SLEEP_SECONDS))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        self._thread.join()


def _standstills(report: Report, variables: int, rows: int, runs: int, folder: Path | None) -> None:
    """Watch checkpoints of so many variables, which have `rows` dirty rows together, all hot."""
    ids = ids_of(np.arange(max(1, rows // variables)))
    values = values_of(ids, STANDING_DIM)
    stops, taken = [], []
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget="512MiB") as store:
        tables = [open_table(store, STANDING_DIM, name=f"table {number}") for number in range(variables)]
        for run in range(-1, runs):  # the first is not measured
            for table in tables:
                table.upsert(ids, values)
            until_idle()
            with _Watch() as watch:
                spent = seconds(partial(store.checkpoint, path / f"{run}"))
            shutil.rmtree(path / f"{run}")
            if run >= 0:
                stops.append(watch.longest_ms)
                taken.append(spent)
    named = f"{variables} variable{'s' * (variables > 1)}"
    line = compare(f"longest standstill during a checkpoint, {named}", "ms", stops)
    report.lines.append(line.at_most(MAX_STANDSTILL_MS.get(variables)))
    report.lines.append(compare(f"until it is complete, {named}", "s", taken))
