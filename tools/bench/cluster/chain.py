"""`kvemb bench cluster --reshard`: a checkpoint is rewritten for 7, 3 and 1 shards, compared with export and import.

Each of these runs in its own process, whose peak of anonymous memory is reported (kvemb.tools.memory); a table of a
quarter of the rows shows whether memory grows with the table. At the end all rows, slots, scores and steps must equal
those of the beginning. Run as a module with the work as JSON, this file is such a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
import kvemb.cluster
from kvemb import bulk
from kvemb.tools.bench.data import batches_of_ids, values_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.results import Comparison, Report, Spread, compare
from kvemb.tools.destinations import remove
from kvemb.tools.export import export
from kvemb.tools.importing import import_table
from kvemb.tools.memory import Peaks

LOAD_BATCH, FIRST, CHAIN = 65_536, 4, (7, 3, 1)
SMALLER, MAX_GROWTH = 4, 1.1
PEERS = {"exported to Parquet and imported": 0.5, "scanned and loaded, no files between": None}
HOW: dict[str, Any] = {"memory_budget": "128MiB"}


def run(rows: int, dim: int, runs: int, folder: Path | None) -> Report:
    """Rewrite a table for other numbers of shards, `runs` times."""
    report = Report("cluster", {"rows": rows, "dim": dim, "shards": [FIRST, *CHAIN], "runs": runs})
    with scratch(folder) as place:
        small, large = place / "small", place / "large"
        before = _chain(small, max(1, rows // SMALLER), dim, 1)
        after = _chain(large, rows, dim, runs)
    hops = [what for what in before if what not in PEERS]
    for peer, bar in PEERS.items():
        for what in hops:
            ours, theirs = ([rows / each["seconds"] for each in after[side]] for side in (what, peer))
            report.lines.append(compare(f"rows {what}", "rows/s", ours, peer, theirs, bar))
    for what in before:
        name = f"anonymous memory, {what}"
        ours, small_ones = ([each["peak_mb"] for each in side[what]] for side in (after, before))
        ratio = Spread.of([max(ours) / small_ones[0]])
        met = ratio.median <= MAX_GROWTH
        smaller = f"{max(1, rows // SMALLER):,} rows"
        line = Comparison(
            name, "MB", Spread.of(ours), smaller, Spread.of(small_ones), ratio, f"ratio ≤ {MAX_GROWTH:g}", met
        )
        report.lines.append(line)
    report.facts["rows_compared"] = rows
    return report


def _chain(place: Path, rows: int, dim: int, runs: int) -> dict[str, list[dict[str, float]]]:
    """Return seconds and peaks of each hop, and of each peer, in each run. Raises AssertionError if a row differs."""
    _make(place / str(FIRST), rows, dim, place / "scratch")
    with kvemb.cluster.restore(place / str(FIRST), place / "store", **HOW) as store:
        expected = _digest(store)
    seen: dict[str, list[dict[str, float]]] = {}
    for _ in range(runs):
        at = FIRST
        for shards in CHAIN:
            work = {"url": str(place / str(at)), "out": str(place / str(shards)), "shards": shards}
            done = _in_a_process({"what": "reshard", **work, "scratch": str(place / "scratch")})
            seen.setdefault(f"from {at} shards to {shards}", []).append(done)
            if at != FIRST:
                remove(place / str(at))
            at = shards
        with kvemb.cluster.restore(place / str(at), place / "again", **HOW) as store:
            if _digest(store) != expected:
                raise AssertionError("the rows after resharding differ from those before")
        remove(place / str(at))
        remove(place / "again")
        for peer in PEERS:
            done = _in_a_process({"what": peer, "store": str(place / "store"), "folder": str(place)})
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


def _in_a_process(work: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, "-P", "-m", "kvemb.tools.bench.cluster.chain", json.dumps(work)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


def measure(work: dict[str, Any]) -> dict[str, float]:
    """Do one piece of work in this process; return its seconds, and its peak of anonymous memory in MB."""
    begun = time.perf_counter()
    with Peaks() as peaks:
        if work["what"] == "reshard":
            kvemb.cluster.reshard(work["url"], work["out"], shards=work["shards"], scratch=work["scratch"])
        else:
            _peer(work["what"], Path(work["store"]), Path(work["folder"]))
    return {"seconds": time.perf_counter() - begun, "peak_mb": peaks.anonymous / 1e6}


def _peer(what: str, store: Path, folder: Path) -> None:
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


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
