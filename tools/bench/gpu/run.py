"""`kvemb bench gpu`: its parts one after the other, as one report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import kvemb
from kvemb.tools.bench.gpu import hot, rates, tiers, training
from kvemb.tools.bench.gpu.cells import FullTable
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Comparison, Report

# The most steps of a run of training.
MAX_STEPS = 5
# The parts, in this order. All but the first have bars.
PARTS = ("calls", "find", "insert", "training", "tiers")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the parts with bars. cells: of a full table. keys: of its calls, and ids of a training step.
    train_rows: of the part training. train_dim: numbers in a row, of training and tiers. device_mib: MiB of the GPU's
    memory, for a table of ten times as much.
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
    parts: Iterable[str],
    sizes: Sizes,
) -> tuple[Report, Iterator[list[Comparison]]]:
    """Time `runs` runs of `batches` calls of each kind. dims: of the part "calls". Raises BackendUnavailable without
    the device.

    Returns a report without lines, and an iterator that measures and yields the lines of each part, or of each dim of
    "calls".
    """
    chosen = [part for part in PARTS if part in set(parts)]
    settings = {"rows": rows, "dims": dims, "batch": batch, "batches": batches, "runs": runs, "device": device}
    report = Report("gpu", {**settings, **({} if chosen == ["calls"] else asdict(sizes)), "parts": chosen})
    with scratch(folder) as path, kvemb.open(path / "store") as store:
        probe = store.get_variable("probe", dim=1, devices=device, hot_rows=1)
        there = hot.gpu_of(probe)
        report.facts |= {"gpu": there.name(), "bytes_per_second": there.bytes_per_second()}
    report.facts["compile_s"] = compile_seconds(dims[0])

    def measured() -> Iterator[list[Comparison]]:
        steps = min(batches, MAX_STEPS)
        if "calls" in chosen:
            for dim in dims:
                yield list(hot.measure(rows, dim, batch, batches, runs, device, folder))
        if {"find", "insert"} & set(chosen):
            yield from _on_full_table(chosen, device, sizes, batches, runs, report.facts)
        if "training" in chosen:
            beside = list(training.measure(device, sizes.train_rows, sizes.train_dim, sizes.keys, steps, runs, folder))
            report.facts["pytorch"] = "measured" if beside else "not measured: PyTorch with a GPU is not installed"
            yield beside
        if "tiers" in chosen:
            yield list(tiers.measure(device, sizes.device_mib, sizes.train_dim, batch, steps, runs, folder))

    return report, measured()


def _on_full_table(
    parts: list[str], device: str, sizes: Sizes, calls: int, runs: int, facts: dict[str, object]
) -> Iterator[list[Comparison]]:
    table = FullTable(device, sizes.cells, rates.BAR_DIM, sizes.keys, calls)
    facts["load"] = table.load
    if "find" in parts:
        yield list(rates.find(table, runs))
    if "insert" in parts:
        yield list(rates.insert(table, runs))
