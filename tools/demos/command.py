"""The command `kvemb demo`: its options, their valid combinations, and the working directory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from kvemb.tools.demos.workplace import workplace
from kvemb.tools.limits import MAX_BATCH, MAX_DIM, MAX_ROWS, MAX_RUNS, MAX_SEED
from kvemb.tools.screen import Screen, local_path

# Defaults: the memory budget, and the steps of --dlrm.
BUDGET, STEPS = "64MiB", 1000


def demo(
    dlrm: Annotated[
        bool,
        typer.Option("--dlrm", help="Train a DLRM with 26 tables, and the same model in plain PyTorch. Needs PyTorch."),
    ] = False,
    clicks: Annotated[
        int | None,
        typer.Option(
            min=20,
            max=MAX_ROWS,
            show_default="6,000,000; with --shards 400,000",
            help="Number of lines of the generated click log.",
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Train over this many shards on Ray and kill one half way. The rows must equal those of one store.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=MAX_RUNS, show_default="1000", help="With --dlrm: number of steps.")
    ] = None,
    kill_at: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_RUNS,
            help="With --dlrm: train again, kill -9 after this many steps, and resume. The result must be equal.",
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_DIM, show_default="32; with --dlrm 16", help="Elements of an embedding."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_BATCH, show_default="8192; with --dlrm 1024", help="Lines per step."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            show_default="64MiB; with --dlrm a fifth of the tables",
            help="The store's memory budget: bytes, or text such as 96MiB.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the random data.")] = 0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", parser=local_path, help="Work in this new or empty directory. Default: a temporary one."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the store and its checkpoint.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the closing figures, as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the closing lines.")] = False,
) -> None:
    """Train tables larger than their memory budget on a generated click log.

    Without options: matrix factorisation. With --dlrm: a deep model with 26 tables.
    """
    _refuse(dlrm, {"--clicks": clicks, "--shards": shards}, "cannot be used with --dlrm")
    _refuse(shards is not None, {"--keep": keep or None}, "cannot be used with --shards")
    _refuse(not dlrm, {"--steps": steps, "--kill-at": kill_at}, "can only be used with --dlrm")
    if kill_at is not None and kill_at >= (steps or STEPS):
        raise typer.BadParameter(f"--kill-at must be less than the {steps or STEPS} steps, got {kill_at}")
    from kvemb.tools.demos import run_clicks, run_cluster, run_dlrm

    with workplace(directory, keep) as folder:
        screen, kept, checkpoint = Screen(quiet, as_json), folder if keep else None, folder / "checkpoint"
        if dlrm:
            dlrm_run = run_dlrm.DlrmRun(steps or STEPS, batch or 1024, dim or 16, budget, seed, kill_at)
            checkpoint = run_dlrm.run(dlrm_run, folder, screen, kept)
        else:
            lines = clicks or (6_000_000 if shards is None else 400_000)
            click_run = run_clicks.ClickRun(lines, dim or 32, batch or 8192, budget or BUDGET, seed)
            if shards is not None:
                run_cluster.run(click_run, shards, folder, screen)
                return
            run_clicks.run(click_run, folder, screen, kept)
    _suggest_commands(screen, kept, checkpoint, "field00" if dlrm else "item")


def _suggest_commands(screen: Screen, kept: Path | None, checkpoint: Path, variable: str) -> None:
    """Print where the kept store is, and commands that inspect it and its checkpoint."""
    if kept is None:
        screen.milestone("next: kvemb demo --keep --dir here, to inspect the store and its checkpoint")
        return
    screen.print_line(f"kept: {kept}")
    store = shlex.quote(str(kept / "store"))
    for command in (
        f"kvemb info {store}",
        f"kvemb stats {store} --variable {variable}",
        f"kvemb peek {store} --variable {variable} --count 3 --neighbours 5",
        f"kvemb diff {shlex.quote(str(checkpoint))} {store} --variable {variable}",
        f"kvemb report {store} {shlex.quote(str(kept / 'report.html'))}",
    ):
        screen.milestone(f"next: {command}")


def _refuse(refused: bool, given: dict[str, object], why: str) -> None:
    for name, value in given.items():
        if refused and value is not None:
            raise typer.BadParameter(f"{name} {why}")
