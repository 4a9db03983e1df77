"""`kvemb bench gpu`: its parts one after the other, as one report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import kvemb
from kvemb.tools.bench.gpu import cells, hot, tiers, training
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Report

# The most steps of a run of training.
MOST_STEPS = 5


@dataclass(frozen=True)
class Full:
    """What --all measures. cells: of a full table; keys: of its calls, and ids of a training step; train_rows: beside
    PyTorch; train_dim: numbers in a row, of what is trained; device_mib: of the GPU, for a table of ten times as much.
    """

    cells: int
    keys: int
    train_rows: int
    train_dim: int
    device_mib: int


def run(
    rows: int,
    dims: list[int],
    batch: int,
    batches: int,
    runs: int,
    device: str,
    folder: Path | None,
    full: Full | None = None,
) -> Report:
    """Time `runs` runs of `batches` calls of each kind for each dim; with full, then all that has a bar.

    Raises BackendUnavailable without the device.
    """
    settings = {"rows": rows, "dims": dims, "batch": batch, "batches": batches, "runs": runs, "device": device}
    report = Report("gpu", {**settings, **({} if full is None else asdict(full))})
    with scratch(folder) as path, kvemb.open(path / "store") as store:
        store.get_variable("probe", dim=1, devices=device, hot_rows=1)
    report.facts["compile_s"] = compile_seconds(dims[0])
    for dim in dims:
        report.lines += hot.measure(rows, dim, batch, batches, runs, device, folder)
    if full is not None:
        steps = min(batches, MOST_STEPS)
        lines, facts = cells.measure(device, full.cells, cells.BAR_DIM, full.keys, batches, runs)
        report.lines += lines
        report.facts |= facts
        beside = list(training.measure(device, full.train_rows, full.train_dim, full.keys, steps, runs, folder))
        report.facts["pytorch"] = "measured" if beside else "not measured: PyTorch with a GPU is not installed"
        report.lines += beside
        report.lines += tiers.measure(device, full.device_mib, full.train_dim, batch, steps, runs, folder)
    return report
