"""`kvemb bench memory`: the peak memory of training, in a separate process for each table size.

The figure is anonymous memory (RssAnon), sampled: pages of mapped files belong to the page cache, which the system can
reclaim at any time; they are shown separately. Run as a module with the settings as JSON, this file is that process: it
loads the table batch by batch, trains, and prints its peaks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import kvemb
from kvemb.tools.bench.data import Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Comparison, Report, Spread
from kvemb.tools.bench.train import LOAD_BATCH, open_table, target, train_step
from kvemb.tools.memory import Peaks

OVERHEAD_BYTES = 300_000_000
# Two runs of one size differ by a few percent; a table four times as large may not take more than this factor.
MAX_GROWTH = 1.05
FIELDS = ("VmHWM", "VmRSS")


def run(
    rows: list[int],
    dim: int,
    hot_rows: int,
    batch: int,
    steps: int,
    exponent: float,
    budget_mib: int,
    folder: Path | None,
) -> Report:
    """Train on a table of each size, and compare the peaks with the budget and with each other."""
    settings: dict[str, object] = {"dim": dim, "hot_rows": hot_rows, "batch": batch, "steps": steps, "zipf": exponent}
    settings["budget_mib"] = budget_mib
    report = Report("memory", {"rows": rows, **settings})
    limit = ((budget_mib << 20) + OVERHEAD_BYTES) / 1e6
    peaks: list[float] = []
    for count in rows:
        seen = _in_a_process({**settings, "rows": count, "folder": None if folder is None else str(folder)})
        report.facts[f"{count:,} rows"] = seen
        peaks.append(seen["anon_peak_mb"])
        report.lines.append(_line(f"{count:,} rows", peaks[-1], "budget + 300 MB", limit, 1.0))
    if len(rows) > 1:
        report.lines.append(_line(f"{rows[-1]:,} rows", peaks[-1], f"{rows[0]:,} rows", peaks[0], MAX_GROWTH))
    return report


def _line(name: str, ours: float, peer_name: str, peer: float, most: float) -> Comparison:
    ratio = Spread.of([ours / peer])
    bar, met = f"ratio ≤ {most:g}", ratio.median <= most
    return Comparison(name, "MB of anonymous memory", Spread.of([ours]), peer_name, Spread.of([peer]), ratio, bar, met)


def _in_a_process(settings: dict[str, object]) -> dict[str, float]:
    command = [sys.executable, "-P", "-m", "kvemb.tools.bench.memory", json.dumps(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


def measure(
    rows: int, dim: int, hot_rows: int, batch: int, steps: int, zipf: float, budget_mib: int, folder: str | None
) -> dict[str, float]:
    """Load and train in this process; return its peaks in MB."""
    compiled = compile_seconds(dim)
    baseline = _resident()
    popularity = Zipf(rows, zipf, seed=3)
    with (
        scratch(None if folder is None else Path(folder)) as path,
        Peaks() as peaks,
        kvemb.open(path / "store", memory_budget=budget_mib << 20) as store,
    ):
        var = open_table(store, dim, hot_rows)
        for ids in batches_of_ids(rows, LOAD_BATCH):
            var.upsert(ids, values_of(ids, dim))
        loaded = _resident()
        pull, upcoming = target(dim), ids_of(popularity.sample(batch))
        for _ in range(steps):
            ids, upcoming = upcoming, ids_of(popularity.sample(batch))
            train_step(var, ids, upcoming, pull)
        trained = _resident()
    seen = {"peak_mb": _resident()["VmHWM"], "imported_mb": baseline["VmRSS"], "loaded_peak_mb": loaded["VmHWM"]}
    seen |= {"trained_mb": trained["VmRSS"], "anon_peak_mb": peaks.anonymous / 1e6, "file_peak_mb": peaks.mapped / 1e6}
    return {**seen, "compile_s": compiled}


def _resident() -> dict[str, float]:
    """Return this process's memory in MB (10**6 bytes), under the kernel's names."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(text.split()[0]) * 1024 / 1e6 for name, text in pairs if name in FIELDS}


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
