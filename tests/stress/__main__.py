"""`python tests/stress`: random operations and crashes on a real table on disk, compared with a model.

It is not a benchmark: it stops at the first difference, and prints the command that reproduces it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvemb.tools.limits import MAX_BATCH, MAX_KEYS_DRAWN, MAX_ROWS, MAX_RUNS, MAX_SEED, no_nan

app = typer.Typer(
    help="Test a table against a model: random operations, killed processes, lost shards.", no_args_is_help=True
)


Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the closing lines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]


@app.command("random")
def random_operations(
    ops: Annotated[
        int, typer.Option(min=1, max=MAX_KEYS_DRAWN, help="Total number of keys in all calls.")
    ] = 10_000_000,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of all random choices.")] = 0,
    hot: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=no_nan, help="Size of the hot tier as a share of the keys.")
    ] = 0.01,
    keys: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Number of distinct keys.")] = 200_000,
    batch: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Largest number of keys per call.")] = 8_192,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run random operations of every kind on a table and on a model, and compare every result.

    At the first difference, prints the command that replays it and exits with 1.
    """
    from stress.run import run

    if not run(ops, seed, hot, keys, batch, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)


@app.command("crash")
def crashes(
    rounds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Number of processes to kill.")] = 200,
    seed: Annotated[
        int,
        typer.Option(min=0, max=MAX_SEED, help="Seed of all random choices. The moments of the kills still vary."),
    ] = 0,
    durability: Annotated[
        Literal["checkpoint", "write"] | None, typer.Option(help="Test only this mode. Default: both in turn.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Kill processes with kill -9, and compare every row of the recovered store.

    Exits with 1 at the first row that is not as promised.
    """
    from stress.crash import run

    if not run(rounds, seed, durability, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)


@app.command("cluster")
def losses(
    rounds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Number of losses.")] = 100,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_SEED, help="Seed of all random choices. Which calls a loss interrupts still varies."
        ),
    ] = 0,
    shards: Annotated[int, typer.Option(min=2, max=64, help="Number of shards.")] = 3,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Number of clients that make calls.")] = 4,
    transport: Annotated[
        Literal["local", "ray"] | None,
        typer.Option(help="Test only shards in this process, or only on Ray. Default: both."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Lose shards, nodes, disks and clients of a cluster under load, recover, and compare every row.

    Exits with 1 at the first row that is not as the last checkpoint has it.
    """
    from stress.losses import run

    if not run(rounds, seed, shards, clients, transport, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # Python puts this folder there, and modules import `stress`
    app()
