"""`kvemb bench series`: the cost of a series of checkpoints over time, on disk and at the place it is pushed to.

Between two checkpoints a share of the rows takes a step. The bytes pushed and the new bytes on disk are compared with
the changed bytes: for each changed row its record and 8 bytes of key. Then rows are rewritten repeatedly, each time
with a timed flush; nothing waits for compaction in between.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import ids_of, values_of
from kvemb.tools.bench.measure import new_bytes, scratch, until_idle
from kvemb.tools.bench.options import BudgetMib, Dim, Folder, Rows, Share
from kvemb.tools.bench.results import Comparison, Report, Spread, compare
from kvemb.tools.bench.trained import LOAD_BATCH, load, open_table, record_bytes
from kvemb.tools.limits import MAX_MIB, MAX_RUNS

MAX_PUSHED, MAX_ON_DISK, MAX_LATER_FLUSH = 2.5, 6.0, 1.3


def run(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    checkpoints: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Checkpoints after the first.")] = 64,
    share: Share = 0.01,
    flush_mib: Annotated[
        int, typer.Option(min=1, max=MAX_MIB, help="Rows rewritten before each timed flush, in MiB.")
    ] = 75,
    flushes: Annotated[int, typer.Option(min=2, max=MAX_RUNS, help="Flushes that are timed.")] = 4,
    budget_mib: BudgetMib = 512,
    folder: Folder = None,
) -> Report:
    """Measure a series of checkpoints: bytes pushed, and bytes written to disk, for each byte that changed."""
    report = Report()
    with scratch(folder) as place, kvemb.open(place / "store", memory_budget=budget_mib << 20) as store:
        table = open_table(store, dim)
        load(table, rows)
        store.flush()
        until_idle()
        _checkpoints(report, store, table, place, checkpoints, max(1, int(rows * share)))
        _flushes(report, store, table, max(1, min(rows, (flush_mib << 20) // record_bytes(dim))), flushes)
    return report


def _checkpoints(
    report: Report, store: kvemb.Store, table: kvemb.Variable, place: Path, count: int, changing: int
) -> None:
    chance, url = np.random.default_rng(7), str(place / "pushed")
    changed, pushed, written, push_seconds, bases = record_bytes(table.dim) * changing, [], [], [], 0
    with kvemb.CheckpointManager(place / "series", keep=2) as series:
        before = series.save(store)
        first = series.push(url).nbytes
        for _ in range(count):
            ids = ids_of(chance.choice(table.size(), changing, replace=False))
            table.apply_gradients(ids, values_of(ids, table.dim))
            after = series.save(store)
            written.append(new_bytes(after, before))
            began = time.perf_counter()
            done = series.push(url, keep=1)
            push_seconds.append(time.perf_counter() - began)
            # The files of a Transfer do not include the manifest.
            pushed.append(done.nbytes + (Path(url) / "checkpoints" / f"{done.number:08d}.json").stat().st_size)
            bases += done.deltas == 0
            before = after
    report.lines.append(_mean("pushed by a checkpoint", pushed, changed, MAX_PUSHED))
    report.lines.append(_mean("new on disk by a checkpoint", written, changed, MAX_ON_DISK))
    began = time.perf_counter()
    with kvemb.CheckpointManager(place / "pulled") as copy:
        found = copy.pull(url)
    report.facts |= {
        "changed_bytes": changed,
        "first_push_bytes": first,
        "bases_after_the_first": bases,
        "push_s": float(np.median(push_seconds)),
        "pull_s": time.perf_counter() - began,
    }
    _compare(found, before)
    shutil.rmtree(place / "pulled")


def _compare(found: kvemb.Checkpoint, wanted: kvemb.Checkpoint) -> None:
    """Raise AssertionError if two checkpoints have other rows."""
    with (
        kvemb.open(found, read_only=True, memory_budget="64MiB") as one,
        kvemb.open(wanted, read_only=True, memory_budget="64MiB") as other,
    ):
        sides = [store.variables["trained"].export_batches() for store in (one, other)]
        for (keys, rows), (wanted_keys, wanted_rows) in zip(*sides, strict=True):
            if not (np.array_equal(keys, wanted_keys) and np.array_equal(rows, wanted_rows)):
                raise AssertionError("the pulled checkpoint has other rows than the pushed one")


def _flushes(report: Report, store: kvemb.Store, table: kvemb.Variable, changing: int, count: int) -> None:
    chance, seconds = np.random.default_rng(9), []
    until_idle()
    for _ in range(count):
        drawn = ids_of(chance.choice(table.size(), changing, replace=False))
        for ids in np.array_split(drawn, -(-changing // LOAD_BATCH)):
            table.upsert(ids, values_of(ids, table.dim))
        began = time.perf_counter()
        store.flush()
        seconds.append(time.perf_counter() - began)
    later, first = seconds[1:], seconds[:1] * (count - 1)
    line = compare("second and later flush", "s", later, "the first", first)
    report.lines.append(line.ratio_at_most(MAX_LATER_FLUSH))
    report.facts["flush_s"] = seconds


def _mean(name: str, ours: Sequence[int], changed: int, most: float) -> Comparison:
    """Return the line of a mean, with the least and the most."""
    mean = sum(ours) / len(ours)
    figures = [Spread(mean / per, min(ours) / per, max(ours) / per) for per in (1, changed)]
    line = Comparison(name, "bytes", figures[0], "the bytes that changed", Spread.of([changed]), figures[1])
    return line.ratio_at_most(most)
