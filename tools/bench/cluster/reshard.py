"""`kvemb bench reshard`: a checkpoint is rewritten for 7, 3 and 1 shards, compared with export and import.

Each of these runs in its own process, whose peak of anonymous memory is reported (kvemb.tools.process_memory); a table
of a quarter of the rows shows whether memory grows with the table. At the end all rows, slots, scores and steps must
equal those of the beginning.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
import kvemb.cluster
from kvemb import bulk
from kvemb.tools.bench.data import batches_of_ids, values_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.options import Dim, Folder, Rows, Runs
from kvemb.tools.bench.processes import result_of
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import LOAD_BATCH
from kvemb.tools.destinations import remove
from kvemb.tools.process_memory import Peaks

FIRST, CHAIN = 4, (7, 3, 1)
SMALLER, MAX_GROWTH = 4, 1.1
PEERS = {"exported to Parquet and imported": 0.5, "scanned and loaded, no files between": None}
HOW: dict[str, Any] = {"memory_budget": "128MiB"}


def run(rows: Rows = 10_000_000, dim: Dim = 64, runs: Runs = 5, folder: Folder = None) -> Report:
    """Rewrite a checkpoint of 4 shards for 7, 3 and 1. Peers: export and import; a scan and a load."""
    report, fewer = Report(facts={"rows_compared": rows}), max(1, rows // SMALLER)
    with scratch(folder) as place:
        before = _chain(place / "small", fewer, dim, 1)
        after = _chain(place / "large", rows, dim, runs)
    for peer, bar in PEERS.items():
        for what in (what for what in before if what not in PEERS):
            ours, theirs = ([rows / each["seconds"] for each in after[side]] for side in (what, peer))
            report.lines.append(compare(f"rows {what}", "rows/s", ours, peer, theirs).ratio_at_least(bar))
    for what in before:
        peaks, small = ([each["peak_mb"] for each in side[what]] for side in (after, before))
        line = compare(f"anonymous memory, {what}", "MB", [max(peaks)], f"{fewer:,} rows", small)
        report.lines.append(line.ratio_at_most(MAX_GROWTH))
    return report


def _chain(place: Path, rows: int, dim: int, runs: int) -> dict[str, list[dict[str, float]]]:
    """Return seconds and peaks of each hop, and of each peer, in each run. Raises AssertionError if a row differs."""
    _make(place / str(FIRST), rows, dim, place / "scratch")
    with kvemb.restore(place / str(FIRST), place / "store", **HOW) as store:
        expected = _digest(store)
    seen: dict[str, list[dict[str, float]]] = {}
    for _ in range(runs):
        at = FIRST
        for shards in CHAIN:
            work = {"url": str(place / str(at)), "out": str(place / str(shards)), "shards": shards}
            done = result_of(__name__, "measure", what="reshard", **work, scratch=str(place / "scratch"))
            seen.setdefault(f"from {at} shards to {shards}", []).append(done)
            if at != FIRST:
                remove(place / str(at))
            at = shards
        with kvemb.restore(place / str(at), place / "again", **HOW) as store:
            if _digest(store) != expected:
                raise AssertionError("the rows after resharding differ from those before")
        remove(place / str(at))
        remove(place / "again")
        for peer in PEERS:
            done = result_of(__name__, "measure", what=peer, store=str(place / "store"), folder=str(place))
            seen.setdefault(peer, []).append(done)
    remove(place)
    return seen


def _make(url: Path, rows: int, dim: int, folder: Path) -> None:
    with kvemb.cluster.open(url, shards=FIRST, scratch=folder, transport="local", **HOW) as cluster:
        table = cluster.get_variable("table", dim=dim, optimizer=kvemb.optimizers.Adagrad(0.01))
        for ids in batches_of_ids(rows, LOAD_BATCH):
            table.apply_gradients(ids, values_of(ids, dim))


def _digest(store: kvemb.Store) -> tuple[int, int]:
    """Return the number of rows, and the sum of their hashes: of key, embedding, slots, score and step."""
    count = total = 0
    for rows in bulk.scan(store.variables["table"]):
        mixed = rows.keys.view(np.uint64).copy()
        columns = [rows.values, *(rows.slots or {}).values(), rows.scores, rows.steps]
        for column in columns:
            assert column is not None
            bits = np.ascontiguousarray(column).reshape(len(rows), -1).view(f"u{column.dtype.itemsize}")
            for number in bits.T:
                mixed = (mixed ^ number.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> np.uint64(29)
        count, total = count + len(rows), (total + int(mixed.sum(dtype=np.uint64))) % 2**64
    return count, total


def measure(what: str, **work: Any) -> dict[str, float]:
    """Do one piece of work in this process; return its seconds, and its peak of anonymous memory in MB."""
    begun = time.perf_counter()
    with Peaks() as peaks:
        if what == "reshard":
            kvemb.cluster.reshard(**work)
        else:
            _peer(what, Path(work["store"]), Path(work["folder"]))
    return {"seconds": time.perf_counter() - begun, "peak_mb": peaks.anonymous / 1e6}


def _peer(what: str, store: Path, folder: Path) -> None:
    from kvemb.tools.export import export
    from kvemb.tools.importing import import_table

    file, into = folder / "table.parquet", folder / "imported"
    if what.startswith("exported"):
        export(store, file, with_slots=True, with_scores=True)
        import_table(file, into)
        remove(file)
    else:
        with kvemb.open(store, read_only=True, **HOW) as source, kvemb.open(into, **HOW) as made:
            table = source.variables["table"]
            bulk.load(bulk.make(made, "table", bulk.described(table)), bulk.scan(table))
    remove(into)
