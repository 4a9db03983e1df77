"""The command `kvemb demo`: its options, their valid combinations, and the working directory."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvemb.tools.demos.workplace import workplace
from kvemb.tools.limits import MAX_BATCH, MAX_DIM, MAX_ROWS, MAX_RUNS, MAX_SEED, no_nan
from kvemb.tools.screen import Screen, local_path

# Defaults: the memory budget for the click log and for triples, and the steps of --dlrm.
BUDGET, STEPS = "64MiB", 1000


def demo(
    files: Annotated[
        list[Path] | None,
        typer.Argument(parser=local_path, metavar="FILE", help="With --triples: the files of triples."),
    ] = None,
    triples: Annotated[
        bool,
        typer.Option(
            "--triples", help="Train on knowledge-graph triples: head<TAB>relation<TAB>tail, plain or gzipped."
        ),
    ] = False,
    model: Annotated[
        Literal["distmult", "complex"] | None,
        typer.Option(show_default="distmult", help="With --triples: the model, DistMult or ComplEx."),
    ] = None,
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
    epochs: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_RUNS, show_default="15", help="With --triples: passes over the training triples."),
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
    hot: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            callback=no_nan,
            show_default="0.1",
            help="With --triples: hot rows as a share of the entities.",
        ),
    ] = None,
    dim: Annotated[
        int | None, typer.Option(min=1, max=MAX_DIM, show_default="32, 200 or 16", help="Elements of an embedding.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_BATCH, show_default="8192, 512 or 1024", help="Lines or triples per step."),
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
    """Train tables larger than their memory budget, on generated data or on files of yours.

    Without options: matrix factorisation on a generated click log. With --triples: embeddings of a knowledge graph.
    With --dlrm: a deep model with 26 tables.
    """
    if triples and not files:
        raise typer.BadParameter("--triples needs at least one FILE")
    if files and not triples:
        raise typer.BadParameter(f"files are read with --triples: kvemb demo --triples {' '.join(map(str, files))}")
    _refuse(triples, {"--clicks": clicks, "--dlrm": dlrm or None}, "cannot be used with --triples")
    _refuse(dlrm, {"--clicks": clicks}, "cannot be used with --dlrm")
    _refuse(triples or dlrm, {"--shards": shards}, "is for the click log alone")
    _refuse(shards is not None, {"--keep": keep or None}, "cannot be used with --shards")
    _refuse(not dlrm, {"--steps": steps, "--kill-at": kill_at}, "can only be used with --dlrm")
    if kill_at is not None and kill_at >= (steps or STEPS):
        raise typer.BadParameter(f"--kill-at must be less than the {steps or STEPS} steps, got {kill_at}")
    if model == "complex" and dim is not None and dim % 2:
        raise typer.BadParameter(f"--dim must be even with --model complex, got {dim}")
    _refuse(not triples, {"--model": model, "--epochs": epochs, "--hot": hot}, "can only be used with --triples")
    from kvemb.tools.demos import run_clicks, run_cluster, run_dlrm, run_triples
    from kvemb.tools.demos.bilinear import TUNINGS

    with workplace(directory, keep) as folder:
        screen, kept, checkpoint = Screen(quiet, as_json), folder if keep else None, folder / "checkpoint"
        if triples:
            name = model or "distmult"
            usual = TUNINGS[name]
            tuning = replace(usual, dim=dim or usual.dim, batch=batch or usual.batch, epochs=epochs or usual.epochs)
            share = 0.1 if hot is None else hot
            graph_run = run_triples.TripleRun(tuple(files or ()), name, share, tuning, budget or BUDGET, seed)
            run_triples.run(graph_run, folder, screen, kept)
        elif dlrm:
            dlrm_run = run_dlrm.DlrmRun(steps or STEPS, batch or 1024, dim or 16, budget, seed, kill_at)
            checkpoint = run_dlrm.run(dlrm_run, folder, screen, kept)
        else:
            lines = clicks or (6_000_000 if shards is None else 400_000)
            click_run = run_clicks.ClickRun(lines, dim or 32, batch or 8192, budget or BUDGET, seed)
            if shards is not None:
                run_cluster.run(click_run, shards, folder, screen)
                return
            run_clicks.run(click_run, folder, screen, kept)
    _suggest_commands(screen, kept, checkpoint, "entity" if triples else "field00" if dlrm else "item")


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
