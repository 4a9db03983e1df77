"""`kvemb bench gpu`: its options, and its parts one after the other, as one report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

import kvemb
from kvemb.tools.bench.gpu import hot, rates, tiers, training
from kvemb.tools.bench.gpu.cells import FullTable
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.options import Batch, Batches, Folder, Rows, Runs
from kvemb.tools.bench.results import Comparison, Report
from kvemb.tools.limits import MAX_BATCH, MAX_DIM, MAX_MIB, MAX_ROWS

# The most steps of a run of training.
MAX_STEPS = 5
# The parts, in this order. All but the first have bars.
PARTS = ("calls", "find", "insert", "training", "tiers")


def run(
    rows: Rows = 1_000_000,
    dim: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=MAX_DIM,
            help="calls: numbers in a row. May be given several times.",
            show_default="64; with --all 8, 32, 64 and 128",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Run all parts.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this part: calls (the default), find, insert, training or tiers. May be given several times."
        ),
    ] = None,
    batch: Batch = 65_536,
    batches: Batches = 10,
    runs: Runs = 9,
    cells: Annotated[
        int, typer.Option(min=1, max=MAX_ROWS, help="find, insert: cells of the table, which is full.")
    ] = 1 << 26,
    keys: Annotated[
        int, typer.Option(min=16, max=MAX_BATCH, help="find, insert: keys per call; training: ids per step.")
    ] = 1 << 20,
    train_rows: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="training: number of rows.")] = 10_000_000,
    train_dim: Annotated[int, typer.Option(min=1, max=MAX_DIM, help="training, tiers: numbers in a row.")] = 128,
    device_mib: Annotated[
        int, typer.Option(min=4, max=MAX_MIB, help="tiers: GPU memory in MiB. The table is 10 times as large.")
    ] = 1024,
    device: Annotated[str, typer.Option(help="The GPU: gpu:0, gpu:1, ...")] = "gpu:0",
    folder: Folder = None,
) -> Report:
    """Measure hot rows on a GPU, in parts.

    \b
    calls: lookup, upsert, training and pooling of hot rows. Peer: the same on the CPU.
    find, insert: keys per second in a full table.
    training: a training step. Peer: PyTorch on the same GPU, if PyTorch for CUDA is installed.
    tiers: training a table 10 times as large as --device-mib. Peer: the same with hot rows on the CPU.

    All parts but calls have targets, stated for an H200; an H100 should reach 0.7 of them. The figures of each part are
    printed when it ends; with --json all figures are printed at the end.
    """
    if unknown := set(only or ()) - set(PARTS):
        raise typer.BadParameter(f"{unknown.pop()!r} is none of {', '.join(PARTS)}", param_hint="--only")
    chosen = PARTS if every else only or ["calls"]
    dims = dim or ([8, 32, 64, 128] if every else [64])
    report = Report()
    with scratch(folder) as path, kvemb.open(path / "store") as store:
        probe: Any = store.get_variable("probe", dim=1, devices=device, hot_rows=1)
        hot.rows_there(probe)  # which are on a GPU
        there = probe.tables[0].cells.queue.device
        report.facts |= {"gpu": there.name(), "bytes_per_second": there.bytes_per_second()}

    def measured() -> Iterator[list[Comparison]]:
        steps = min(batches, MAX_STEPS)
        if "calls" in chosen:
            for each in dims:
                yield list(hot.measure(rows, each, batch, batches, runs, device, folder))
        if "find" in chosen or "insert" in chosen:
            table = FullTable(device, cells, rates.BAR_DIM, keys, batches)
            report.facts["load"] = table.load
            for part, measure in (("find", rates.find), ("insert", rates.insert)):
                if part in chosen:
                    yield list(measure(table, runs))
            del table  # frees the GPU's memory
        if "training" in chosen:
            beside = list(training.measure(device, train_rows, train_dim, keys, steps, runs, folder))
            report.facts["pytorch"] = "measured" if beside else "not measured: PyTorch with a GPU is not installed"
            yield beside
        if "tiers" in chosen:
            yield list(tiers.measure(device, device_mib, train_dim, batch, steps, runs, folder))

    report.parts = measured()
    return report
