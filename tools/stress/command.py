"""`kvemb stress`: a real table through random operations and crashes, compared with a model. Needs disk for it.

Not a benchmark: it looks for the first difference, and says how to see it again.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

app = typer.Typer(help="Look for a difference between a table and its model.", no_args_is_help=True)


Quiet = Annotated[bool, typer.Option("--quiet", help="Print the closing table alone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command("random")
def random_operations(
    ops: Annotated[int, typer.Option(min=1, help="Keys to touch in all.")] = 10_000_000,
    seed: Annotated[int, typer.Option(min=0, help="What everything random follows from.")] = 0,
    hot: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the keys that may be hot.")] = 0.01,
    keys: Annotated[int, typer.Option(min=1, help="Keys there are.")] = 200_000,
    batch: Annotated[int, typer.Option(min=1, help="The most keys in a call.")] = 8_192,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Do random operations of every kind; exit with 1 at the first difference, and print the command to replay it."""
    from kvemb.tools.stress.run import run

    if not run(ops, seed, hot, keys, batch, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)


@app.command("crash")
def crashes(
    rounds: Annotated[int, typer.Option(min=1, help="Processes to kill.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="What everything but the instants follows from.")] = 0,
    durability: Annotated[
        Literal["checkpoint", "write"] | None, typer.Option(help="One mode alone, not both by turns.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Kill a process with -9 again and again, and compare every row that is left; exit with 1 at the first loss."""
    from kvemb.tools.stress.crash import run

    if not run(rounds, seed, durability, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)
