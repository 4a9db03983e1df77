"""The verb `kvemb demo`: its options, what they mean together, and where the demo works."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from kvemb.tools.demos import run_clicks, run_triples
from kvemb.tools.demos.distmult import Tuning
from kvemb.tools.demos.workplace import PatientInterrupts, workplace
from kvemb.tools.screen import Screen, local_path


def demo(
    files: Annotated[
        list[Path] | None, typer.Argument(parser=local_path, metavar="FILE...", help="With --triples: the files.")
    ] = None,
    triples: Annotated[
        bool, typer.Option("--triples", help="Train on knowledge-graph triples: head<TAB>relation<TAB>tail, or gzip.")
    ] = False,
    clicks: Annotated[
        int | None, typer.Option(min=20, show_default="6,000,000", help="Lines of the generated click log.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, show_default="12", help="With --triples: passes over the training triples.")
    ] = None,
    hot: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, show_default="0.1", help="With --triples: hot rows, as a share of entities."),
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, show_default="32, or 200", help="Elements of an embedding.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, show_default="8192, or 512", help="Lines, or triples, of one step.")
    ] = None,
    budget: Annotated[str, typer.Option(help="The store's memory budget: bytes, or text such as 96MiB.")] = "64MiB",
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same data.")] = 0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", parser=local_path, help="Work in this new or empty directory; default: a temporary one."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the store and its checkpoint there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the closing figures as JSON, nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the closing table only.")] = False,
) -> None:
    """Train a table larger than its memory budget: a generated click log, or with --triples a knowledge graph."""
    if triples and not files:
        raise typer.BadParameter("--triples needs at least one FILE")
    if files and not triples:
        raise typer.BadParameter(f"files are read with --triples: kvemb demo --triples {' '.join(map(str, files))}")
    _refuse(triples, {"--clicks": clicks}, "goes without --triples")
    _refuse(not triples, {"--epochs": epochs, "--hot": hot}, "goes with --triples")
    with PatientInterrupts() as stop, workplace(directory, keep) as place:
        screen = Screen(quiet, as_json)
        if triples:
            tuning = Tuning(dim=dim or Tuning.dim, batch=batch or Tuning.batch)
            share = 0.1 if hot is None else hot
            graph_run = run_triples.TripleRun(tuple(files or ()), epochs or 12, share, tuning, budget, seed)
            run_triples.run(graph_run, place, screen, stop, place if keep else None)
        else:
            click_run = run_clicks.ClickRun(clicks or 6_000_000, dim or 32, batch or 8192, budget, seed)
            run_clicks.run(click_run, place, screen, stop, place if keep else None)
    _tell_what_next(screen, place if keep else None, "entity" if triples else "item")


def _tell_what_next(screen: Screen, kept: Path | None, variable: str) -> None:
    """Say where the store is that was kept, and commands that look into it."""
    if kept is None:
        screen.say("next: kvemb demo --keep --dir here, whose store and checkpoint can be looked into")
        return
    screen.tell(f"kept: {kept}")
    store, checkpoint = (shlex.quote(str(kept / name)) for name in ("store", "checkpoint"))
    for command in (
        f"kvemb info {store}",
        f"kvemb stats {store} {variable}",
        f"kvemb peek {store} {variable} --count 3 --neighbours 5",
        f"kvemb diff {checkpoint} {store} --variable {variable}",
        f"kvemb report {store} --out {shlex.quote(str(kept / 'report.html'))}",
    ):
        screen.say(f"next: {command}")


def _refuse(refused: bool, given: dict[str, object], why: str) -> None:
    for name, value in given.items():
        if refused and value is not None:
            raise typer.BadParameter(f"{name} {why}")
