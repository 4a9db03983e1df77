"""`kvemb restrict`, `compact`, `drop`, `migrate`: change a store offline, and print rows and bytes before and after."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import kvemb
from kvemb import bulk
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.limits import MAX_DIM, MAX_STORED_ROWS
from kvemb.tools.reading import WRITE_BUDGET, chosen
from kvemb.tools.screen import AsJson, Quiet, Screen, Variable, counted, local_path, size

Store = Annotated[Path, typer.Argument(metavar="PATH", parser=local_path, help="A store that no process has open.")]

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def _bytes(path: Path) -> int:
    """Return the bytes of a store's durable point."""
    return kvemb.Checkpoint.at(path).nbytes


def _open(path: Path, *, read_only: bool = False) -> kvemb.Store:
    kvemb.Checkpoint.at(path)  # raises if there is no store, which kvemb.open would create
    return kvemb.open(path, memory_budget=WRITE_BUDGET, read_only=read_only)


def restrict(
    path: Store,
    keep: Annotated[
        int,
        typer.Argument(
            metavar="KEEP", min=0, max=MAX_STORED_ROWS, help="Number of rows to keep: those with the highest scores."
        ),
    ],
    variable: Variable = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print how many rows would be removed, and change nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Remove a variable's rows with the lowest scores, until at most KEEP remain.

    Example: kvemb restrict store 1000000 --variable users
    """
    before = _bytes(path)
    screen = Screen(quiet, as_json)
    summary: dict[str, object]
    with screen.counting("restrict") as update, _open(path, read_only=dry_run) as store:
        table = store.variables[chosen(path, list(store.variables), variable)]
        if table.restrict_policy is None:
            raise BadInput(
                f"variable {table.name!r} has no policy; give it one: "
                f"kvemb migrate {path} --variable {table.name} --policy frequency"
            )
        rows = table.size()
        left = bulk.restrict(table, keep, progress=update, dry_run=dry_run)
        now = rows - left if dry_run else table.size()
    if dry_run:
        told = f"{counted(rows, 'row')} now, {now:,} would stay: {left:,} would be removed"
        summary = {"variable": table.name, "rows_before": rows, "rows_after": now, "dry_run": True}
        screen.close(
            f"kvemb restrict {path} --dry-run", [(table.name, told), ("policy", str(table.restrict_policy))], summary
        )
        return
    after = _bytes(path)
    lines = [
        (table.name, f"{counted(rows, 'row')} before, {now:,} after: {left:,} removed"),
        ("bytes", f"{size(before)} before, {size(after)} after; may grow until kvemb compact frees the space"),
    ]
    summary = {"variable": table.name, "rows_before": rows, "rows_after": now}
    summary |= {"bytes_before": before, "bytes_after": after}
    screen.close(f"kvemb restrict {path}", lines, summary)


def compact(path: Store, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Free the disk space that replaced and removed rows still take.

    Marks keep their files, as checkpoints do.

    Example: kvemb compact store
    """
    before = _bytes(path)
    screen = Screen(quiet, as_json)
    with screen.counting("compact") as update, _open(path) as store:
        bulk.compact(store, progress=update)
        marks = len(store.marks)
    after = _bytes(path)
    lines = [("bytes", f"{size(before)} before, {size(after)} after")]
    if marks:
        what = "1 mark keeps its" if marks == 1 else f"{marks:,} marks keep their"
        lines.append(("marks", f"{what} files: kvemb info {path} lists them, Store.drop_mark frees them"))
    screen.close(f"kvemb compact {path}", lines, {"bytes_before": before, "bytes_after": after, "marks": marks})


def drop(
    path: Store,
    variable: Annotated[str, typer.Option(help="The variable's name.")],
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Delete a variable and all its rows.

    Shows how many rows will be deleted, and asks. Checkpoints and marks that were made before keep the variable.

    Example: kvemb drop store --variable users
    """
    before = _bytes(path)
    screen = Screen(quiet, as_json)
    with _open(path) as store:
        name = chosen(path, list(store.variables), variable)
        rows = kvemb.Checkpoint.at(path).variables[name].rows
        if not as_json:
            screen.print_line(f"{counted(rows, 'row')} of {name!r} will be deleted from {path}")
        _ask("drop", yes)
        store.drop_variable(name)
    after = _bytes(path)
    lines = [("dropped", f"{name}, {counted(rows, 'row')}"), ("bytes", f"{size(before)} before, {size(after)} after")]
    summary: dict[str, object] = {"variable": name, "rows": rows, "bytes_before": before, "bytes_after": after}
    screen.close(f"kvemb drop {path}", lines, summary)


def _ask(command: str, yes: bool) -> None:
    """Ask for confirmation. Raises Exit if it is refused, WrongUsage if stdin is not a terminal."""
    if not yes:
        if not sys.stdin.isatty():
            raise WrongUsage(f"{command} asks before it writes, but stdin is not a terminal; give --yes")
        if not typer.confirm("Continue?"):
            raise typer.Exit(1)


def migrate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", parser=local_path, help="A store; or, with OUT, also a checkpoint.")
    ],
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT",
            parser=local_path,
            help="A new directory, for a new store with this variable alone; PATH is not changed then.",
        ),
    ] = None,
    variable: Variable = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="An optimizer or none. Parameters may follow the name: adagrad:0.1,clip_norm=1"),
    ] = None,
    slots: Annotated[
        Literal["keep", "reset"], typer.Option(help="Whether to keep or reset slots that both optimizers have.")
    ] = "keep",
    value_dtype: Annotated[str | None, typer.Option(help="The new dtype of the values.")] = None,
    dim: Annotated[
        int | None, typer.Option(min=1, max=MAX_DIM, help="The new dim. Rows are padded with zeros, or cut.")
    ] = None,
    key_dtype: Annotated[
        Literal["int64", "int32", "uint64"] | None, typer.Option(help="The new dtype of the keys.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="none, frequency, timestamp, time_to_live, epoch_frequency, epoch_timestamp or norm. A parameter may "
            "follow: frequency:1000 (half-life in steps), time_to_live:86400 (seconds), timestamp:steps (clock)."
        ),
    ] = None,
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Change the optimizer, dtype, dim or policy of a variable.

    Without OUT the variable changes in its store. All other variables stay, and checkpoints go on in the same series.
    With OUT it is copied to a new store. Shows what will change, and asks.

    Example: kvemb migrate store --variable users --optimizer adam:0.001 --yes

    Example: kvemb migrate checkpoints/00000042 smaller --value-dtype float16 --optimizer none --yes
    """
    from kvemb.tools import migrate as migrating

    found = migrating.plan(
        path,
        out,
        variable=variable,
        optimizer=optimizer,
        slots=slots,
        value_dtype=value_dtype,
        dim=dim,
        key_dtype=key_dtype,
        policy=policy,
    )
    screen = Screen(quiet, as_json)
    if not as_json:
        screen.print_line(f"{counted(found.rows, 'row')} of {found.variable!r} {f'to {out}' if out else 'in place'}:")
        for step in found.steps:
            screen.print_line(f"  {step}")
    _ask("migrate", yes)
    with screen.counting("migrate") as update:
        rows = migrating.migrate(found, progress=update)
    lines = [("made" if out else "changed", f"{out or path}, {counted(rows, 'row')}")]
    screen.close(f"kvemb migrate {path}", lines, {"out": str(out or path), "rows": rows, "steps": found.steps})
