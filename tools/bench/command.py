"""`kvemb bench`: measures kvemb and a peer in the same run, and compares the results with the required ones (bars).

Each command prints a table, or JSON with --json. The bars are for the default sizes. The two sides take turns, because
the speed of a shared machine varies: compare the ratios, not the rates. The tables take disk space in --folder, and are
deleted afterwards.

Longer than 300 lines: it has all commands, each with its options and one call.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kvemb.tools.bench.options import (
    DIMS,
    AsJson,
    Batch,
    Batches,
    BudgetMib,
    Dim,
    Dims,
    Folder,
    HotRows,
    Rows,
    Runs,
    Steps,
    Zipf,
)
from kvemb.tools.bench.tier.command import tier
from kvemb.tools.limits import (
    MAX_BATCH,
    MAX_DIM,
    MAX_KEYS_DRAWN,
    MAX_MIB,
    MAX_PAUSE_S,
    MAX_RECORD_BYTES,
    MAX_ROWS,
    MAX_RUNS,
    no_nan,
)
from kvemb.tools.screen import to_json

app = typer.Typer(help="Measure kvemb and a peer, in turns in the same run.", no_args_is_help=True)
app.command()(tier)


@app.command()
def lookup(
    rows: Rows = 4_000_000,
    dim: Dims = None,
    batch: Batch = 65_536,
    batches: Batches = 10,
    runs: Runs = 9,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Look up random rows, all hot. Peer: np.take."""
    from kvemb.tools.bench.lookup import run

    run(rows, dim or DIMS, batch, batches, runs, folder).show(json)


@app.command()
def upsert(
    rows: Rows = 4_000_000,
    dim: Dims = None,
    batch: Batch = 65_536,
    batches: Batches = 10,
    runs: Runs = 9,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Upsert random rows, all hot. Peer: an assignment to an array."""
    from kvemb.tools.bench.upsert import run

    run(rows, dim or DIMS, batch, batches, runs, folder).show(json)


@app.command()
def gpu(
    rows: Rows = 1_000_000,
    dim: Dims = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Run all parts. The part calls then takes rows of 8, 32, 64 and 128 numbers."),
    ] = False,
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
    json: AsJson = False,
) -> None:
    """Measure hot rows on a GPU, in parts.

    \b
    calls: lookup, upsert, training and pooling of hot rows. Peer: the same on the CPU.
    find, insert: keys per second in a full table.
    training: a training step. Peer: PyTorch on the same GPU, if PyTorch for CUDA is installed.
    tiers: training a table 10 times as large as --device-mib. Peer: the same with hot rows on the CPU.

    All parts but calls have targets, stated for an H200; an H100 should reach 0.7 of them. The figures of each part are
    printed when it ends; with --json all figures are printed at the end.
    """
    from kvemb.tools.bench.gpu.run import PARTS, Sizes, run

    if unknown := set(only or ()) - set(PARTS):
        raise typer.BadParameter(f"{unknown.pop()!r} is none of {', '.join(PARTS)}", param_hint="--only")
    dims = dim or ([8, 32, 64, 128] if every else [64])
    sizes = Sizes(cells, keys, train_rows, train_dim, device_mib)
    parts = PARTS if every else only or ["calls"]
    report, measured = run(rows, dims, batch, batches, runs, device, folder, parts, sizes)
    report.show_parts(measured, json)


@app.command()
def pool(
    rows: Rows = 4_000_000,
    dim: Dims = None,
    bags: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Bags per call.")] = 4_096,
    bag: Annotated[int, typer.Option(min=1, max=1_000, help="Ids in a bag.")] = 20,
    batches: Batches = 10,
    runs: Runs = 9,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Sum bags of random rows, all hot. Peer: PyTorch's embedding_bag, or NumPy if PyTorch is not installed."""
    from kvemb.tools.bench.pool import run

    run(rows, dim or [16, 64], bags, bag, batches, runs, folder).show(json)


@app.command()
def small(
    rows: Rows = 200_000,
    dim: Dim = 64,
    calls: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Calls of each kind per run.")] = 500,
    runs: Runs = 7,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Time small calls: one key or a hundred, hot; one key missing or cold. Peer: np.take."""
    from kvemb.tools.bench.small import run

    run(rows, dim, calls, runs, folder).show(json)


@app.command()
def cluster(
    reshard: Annotated[
        bool, typer.Option("--reshard", help="Instead, measure rewriting a checkpoint of 4 shards for 7, 3 and 1.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Instead, estimate the cost of 8, 64 and 1,000 shards with 10^12 rows.")
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_ROWS, help="Rows in the table. Default: 200,000; with --reshard 10 million."),
    ] = None,
    dim: Dim = 64,
    batch: Batch = 16_384,
    steps: Steps = 20,
    runs: Runs = 5,
    zipf: Zipf = 1.0,
    tables: Annotated[int, typer.Option(min=1, max=1000, help="Variables, with equal parts of rows and keys.")] = 1,
    shards: Annotated[int, typer.Option(min=1, max=64, help="Number of shards.")] = 2,
    transport: Annotated[str, typer.Option(help="ray: actors; local: shards in this process.")] = "ray",
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Train over shards, and fill 8 shards. Peers: one store; the exchange of the messages alone."""
    from kvemb.tools.bench.cluster import chain, simulation
    from kvemb.tools.bench.cluster import shards as over_shards

    if simulate:
        print(to_json(simulation.as_json(), indent=2) if json else simulation.text(), end="")
    elif reshard:
        chain.run(rows or 10_000_000, dim, runs, folder).show(json)
    else:
        over_shards.run(rows or 200_000, dim, batch, steps, runs, zipf, tables, shards, transport, folder).show(json)


@app.command()
def train(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    hot_rows: HotRows = 400_000,
    batch: Batch = 8_192,
    steps: Steps = 100,
    runs: Runs = 5,
    zipf: Zipf = 1.0,
    budget_mib: BudgetMib = 256,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Compare with another version of kvemb: a git revision, a checkout or a wheel."
        ),
    ] = None,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Train with a tenth of the rows hot. Peer: a loop written by hand on rocksdict, or another version of kvemb."""
    from kvemb.tools.bench.against.run import run as run_against
    from kvemb.tools.bench.train import run

    if against is not None:
        table = rows, dim, hot_rows, batch, steps, runs, zipf, budget_mib, folder
        run_against(against, *table).show(json)
        return
    run(rows, dim, hot_rows, batch, steps, runs, zipf, budget_mib, folder).show(json)


@app.command()
def torch(
    rows: Rows = 1_000_000,
    dim: Dim = 64,
    batch: Batch = 65_536,
    steps: Steps = 5,
    runs: Runs = 9,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Train with all rows hot. Peers: PyTorch's sparse EmbeddingBag with Adagrad; FBGEMM, if installed."""
    from kvemb.tools.bench.torch import run

    run(rows, dim, batch, steps, runs, folder).show(json)


@app.command()
def cold(
    rows: Annotated[
        list[int] | None, typer.Option(min=1, max=MAX_ROWS, help="Rows in the table. May be given several times.")
    ] = None,
    dim: Dim = 32,
    hot: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=no_nan, help="Share of the rows that fits in the hot tier.")
    ] = 0.02,
    batch: Batch = 8_192,
    steps: Steps = 50,
    runs: Runs = 3,
    budget_mib: BudgetMib = 256,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Measure the CPU time of a cold row that is read, trained and written back, by the size of the table."""
    from kvemb.tools.bench.cold import run

    run(rows or [1_000_000, 4_000_000], dim, hot, batch, steps, runs, budget_mib, folder).show(json)


@app.command()
def tables(
    tables: Annotated[int, typer.Option(min=1, max=1000, help="Number of tables.")] = 26,
    rows: Rows = 1_000_000,
    batch: Batch = 4_096,
    steps: Steps = 400,
    zipf: Zipf = 1.0,
    budget_mib: BudgetMib = 256,
    changing: Annotated[bool, typer.Option(help="At first use only the smaller half of the tables.")] = False,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Train many tables in one budget. Peer, for the hit rate: the best fixed split of the memory."""
    from kvemb.tools.bench.tables import run

    run(tables, rows, batch, steps, zipf, budget_mib, changing, folder).show(json)


@app.command()
def spent(
    tables: Annotated[int, typer.Option(min=1, max=1000, help="Number of tables.")] = 26,
    rows: Rows = 40_000,
    dim: Dim = 16,
    batch: Batch = 1_024,
    steps: Steps = 40,
    zipf: Zipf = 0.0,
    budget_mib: BudgetMib = 32,
    runs: Runs = 5,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Train tables whose hot rows have grown into the budget. Peer: the same with memory left over."""
    from kvemb.tools.bench.spent import run

    run(tables, rows, dim, batch, steps, runs, zipf, budget_mib, folder).show(json)


@app.command()
def hitrate(
    rows: Rows = 2_000_000,
    dim: Dim = 4,
    hot_rows: HotRows = 131_072,
    batch: Batch = 8_192,
    accesses: Annotated[int, typer.Option(min=1, max=MAX_KEYS_DRAWN, help="Keys looked up in total.")] = 6_000_000,
    zipf: Zipf = 0.8,
    budget_mib: BudgetMib = 256,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Measure the hit rate of lookups. Peers: an exact LRU cache; the best fixed set of rows."""
    from kvemb.tools.bench.hitrate import run

    run(rows, dim, hot_rows, batch, accesses, zipf, budget_mib, folder).show(json)


@app.command()
def memory(
    rows: Annotated[
        list[int] | None, typer.Option(min=1, max=MAX_ROWS, help="Rows in the table. May be given several times.")
    ] = None,
    dim: Dim = 32,
    hot_rows: HotRows = 400_000,
    batch: Batch = 8_192,
    steps: Steps = 1000,
    zipf: Zipf = 1.0,
    budget_mib: BudgetMib = 256,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Measure the peak memory of training, by the size of the table, and compare it with the budget."""
    from kvemb.tools.bench.memory import run

    run(rows or [4_000_000, 16_000_000], dim, hot_rows, batch, steps, zipf, budget_mib, folder).show(json)


@app.command()
def spill(
    rows: Rows = 4_000_000,
    record_bytes: Annotated[int, typer.Option(min=1, max=MAX_RECORD_BYTES, help="Bytes per record.")] = 273,
    batch: Batch = 65_536,
    batches: Annotated[int, typer.Option(min=3, max=MAX_RUNS, help="Batches written, each followed by a read.")] = 120,
    reads: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Rows read after each batch.")] = 16_384,
    cache_mib: Annotated[int, typer.Option(min=1, max=MAX_MIB, help="Block cache and memtables in MiB.")] = 64,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Write batches to RocksDB as sorted WriteBatches. Peer: ingesting SST files."""
    from kvemb.tools.bench.spill import run

    run(rows, record_bytes, batch, batches, reads, cache_mib, folder).show(json)


@app.command()
def checkpoint(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=no_nan, help="Share of the rows that changes.")
    ] = 0.01,
    hot_mib: Annotated[
        int, typer.Option(min=1, max=MAX_MIB, help="For the pause: size in MiB of the hot tier, all dirty.")
    ] = 512,
    batch: Batch = 8_192,
    dirty_rows: Annotated[
        int, typer.Option(min=1, max=MAX_ROWS, help="For the standstill: dirty rows in all.")
    ] = 200_000,
    variables: Annotated[
        list[int] | None, typer.Option(min=1, max=1000, help="For the standstill: variables. Default: 1, 26, 300.")
    ] = None,
    runs: Runs = 3,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Measure checkpoints: bytes written, pauses of training, standstills, restores. Peers: np.load and torch.load."""
    from kvemb.tools.bench.checkpoint import run

    run(rows, dim, share, hot_mib, batch, dirty_rows, variables or [1, 26, 300], runs, folder).show(json)


@app.command()
def series(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    checkpoints: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Checkpoints after the first.")] = 64,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=no_nan, help="Share of the rows that changes between two.")
    ] = 0.01,
    flush_mib: Annotated[
        int, typer.Option(min=1, max=MAX_MIB, help="Rows rewritten before each timed flush, in MiB.")
    ] = 75,
    flushes: Annotated[int, typer.Option(min=2, max=MAX_RUNS, help="Flushes that are timed.")] = 4,
    budget_mib: BudgetMib = 512,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Measure a series of checkpoints: bytes pushed, and bytes written to disk, for each byte that changed."""
    from kvemb.tools.bench.series import run

    run(rows, dim, checkpoints, share, flush_mib, flushes, budget_mib, folder).show(json)


@app.command()
def follow(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    hot_rows: HotRows = 400_000,
    batch: Batch = 1_024,
    share: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, callback=no_nan, help="Share of the rows that changes between two points."),
    ] = 0.01,
    every: Annotated[
        float, typer.Option(min=0.01, max=MAX_PAUSE_S, callback=no_nan, help="Seconds between two durable points.")
    ] = 1.0,
    points: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Durable points per run.")] = 5,
    runs: Runs = 3,
    budget_mib: BudgetMib = 512,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Look up hot rows in a follower that refreshes while another process trains. Peer: a follower that does not."""
    from kvemb.tools.bench.follow import run

    run(rows, dim, hot_rows, batch, share, every, points, runs, budget_mib, folder).show(json)


@app.command()
def export(
    rows: Rows = 10_000_000,
    dim: Dim = 32,
    runs: Runs = 3,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Export to Parquet and import again: speed and peak memory. Peer: code written by hand with pyarrow."""
    from kvemb.tools.bench.export import run

    run(rows, dim, runs, folder).show(json)


@app.command()
def features(
    tables: Annotated[int, typer.Option(min=1, max=1000, help="Number of tables.")] = 26,
    rows: Rows = 40_000,
    dim: Dim = 16,
    batch: Batch = 4096,
    steps: Steps = 5,
    runs: Runs = 9,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Train an EmbeddingBagCollection of many tables, all hot. Peer: PyTorch's sparse EmbeddingBags."""
    from kvemb.tools.bench.features import run

    run(tables, rows, dim, batch, steps, runs, folder).show(json)


@app.command()
def prefetch(
    rows: Rows = 1_000_000,
    dim: Dim = 32,
    hot_rows: HotRows = 100_000,
    batch: Batch = 16_384,
    steps: Steps = 50,
    runs: Runs = 5,
    zipf: Zipf = 1.0,
    tables: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of tables. Several share a budget of about --hot-rows each.")
    ] = 1,
    folder: Folder = None,
    json: AsJson = False,
) -> None:
    """Train mostly cold tables with kvemb.torch.prefetching, and without. A model takes half of each step."""
    from kvemb.tools.bench.prefetch import run

    run(rows, dim, hot_rows, batch, steps, runs, zipf, tables, folder).show(json)
