"""`kvemb stress`: random operations and crashes on a real table on disk, compared with a model.

It is not a benchmark: it stops at the first difference, and prints the command that reproduces it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kvemb.tools.limits import MAX_BATCH, MAX_KEYS_DRAWN, MAX_ROWS, MAX_RUNS, MAX_SEED, no_nan

app = typer.Typer(help="Compare tables with a model after random operations, kills and losses.", no_args_is_help=True)


Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the closing table.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command("random")
def random_operations(
    ops: Annotated[
        int, typer.Option(min=1, max=MAX_KEYS_DRAWN, help="Total number of keys in all calls.")
    ] = 10_000_000,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of all random choices.")] = 0,
    hot: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=no_nan, help="Size of the hot tier, as a share of the keys.")
    ] = 0.01,
    keys: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Number of different keys.")] = 200_000,
    batch: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="The most keys per call.")] = 8_192,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run random operations of every kind; at the first difference exit with 1 and print the command to replay it."""
    from kvemb.tools.stress.run import run

    if not run(ops, seed, hot, keys, batch, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)


@app.command("crash")
def crashes(
    rounds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Number of processes to kill.")] = 200,
    seed: Annotated[
        int,
        typer.Option(min=0, max=MAX_SEED, help="Seed of all random choices; the instants of the kills still vary."),
    ] = 0,
    durability: Annotated[
        Literal["checkpoint", "write"] | None, typer.Option(help="Test only this mode, not both in turns.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Kill processes with -9, and compare every row of the recovered store; exits with 1 at the first loss."""
    from kvemb.tools.stress.crash import run

    if not run(rounds, seed, durability, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)


@app.command("cluster")
def losses(
    rounds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Number of losses.")] = 100,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_SEED, help="Seed of all random choices; the calls in progress at a loss still vary."
        ),
    ] = 0,
    shards: Annotated[int, typer.Option(min=2, max=64, help="Number of shards.")] = 3,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Number of clients that make calls.")] = 4,
    transport: Annotated[
        Literal["local", "ray"] | None, typer.Option(help="Test only shards in this process, or on Ray; not both.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Lose shards, nodes, disks and clients under load; return to the last checkpoint; compare every row."""
    from kvemb.tools.stress.losses import run

    if not run(rounds, seed, shards, clients, transport, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)
