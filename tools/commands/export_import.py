"""`kvemb export` and `kvemb import`: the commands of kvemb.tools.export and kvemb.tools.importing."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvemb.tools.destinations import PIPE
from kvemb.tools.formats.known import FORMATS, names
from kvemb.tools.limits import MAX_JOBS, MAX_PARTS
from kvemb.tools.screen import PLACE, AsJson, Quiet, Screen, Variable, counted, local_path

_FORMATS = "; ".join(f"{kind.name}: {kind.what}" for kind in FORMATS.values() if kind.writer is not None)


def export(
    path: Annotated[str, typer.Argument(help=PLACE)],
    out: Annotated[str, typer.Argument(help="A new file or folder, a URL, or - for a pipe.")],
    variable: Variable = None,
    format: Annotated[str | None, typer.Option(help=f"{names(written=True)}; default: by the ending of OUT.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="A condition, such as 'score >= 3 and key in 0..999'.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="An earlier checkpoint: export only rows that changed since.")
    ] = None,
    dtype: Annotated[
        Literal["float16", "bfloat16", "int8"] | None, typer.Option(help="Another dtype for the values.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale each row to norm 1.")] = False,
    with_slots: Annotated[bool, typer.Option("--with-slots", help="Export the optimizer's slots too.")] = False,
    with_scores: Annotated[bool, typer.Option("--with-scores", help="Export score and step too.")] = False,
    partitions: Annotated[
        int, typer.Option(min=1, max=MAX_PARTS, help="Number of files, one per key range, in the folder OUT.")
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Number of processes that write them.")] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a variable to a file format, in key order. Memory does not grow with the table.

    Example: kvemb export checkpoints/00000042 users.parquet --variable users --with-slots --with-scores
    """
    from kvemb.tools import export as tool

    piped = out == PIPE
    screen = Screen(quiet or piped, as_json)
    with screen.counting("export") as update:
        done = tool.export(
            path,
            sys.stdout.buffer if piped else out,
            variable=variable,
            format=format,
            where=where or [],
            since=since,
            dtype=dtype,
            normalize=normalize,
            with_slots=with_slots,
            with_scores=with_scores,
            partitions=partitions,
            jobs=jobs,
            progress=update,
        )
    if piped:
        return
    lines = [("variable", done.variable), ("wrote", f"{counted(done.rows, 'row')} as {done.format} to {done.out}")]
    if since is not None:
        lines.append(("removed", f"{counted(done.removed, 'key')}, in {tool.removed_beside(done.out)}"))
    if done.left_out:
        lines.append(("note", f"without {' and '.join(done.left_out)}: training cannot continue"))
    screen.close(f"kvemb export {path}", lines, asdict(done))


def import_(
    source: Annotated[str, typer.Argument(help="A file, a folder, a URL, or - for a pipe.")],
    path: Annotated[Path, typer.Argument(parser=local_path, help="A store; created if it does not exist.")],
    variable: Annotated[
        str | None, typer.Option(help="The variable's name; default: the name in SOURCE, or that of SOURCE.")
    ] = None,
    format: Annotated[str | None, typer.Option(help=f"{names()}; default: by the ending of SOURCE.")] = None,
    on_conflict: Annotated[
        Literal["replace", "keep", "error"], typer.Option(help="What to do if a row exists already.")
    ] = "error",
    key_column: Annotated[str | None, typer.Option(help="The column of keys.")] = None,
    value_column: Annotated[
        str | None, typer.Option(help="The column of values; of a PyTorch file, the weight.")
    ] = None,
    key_dtype: Annotated[
        Literal["int64", "int32", "uint64"] | None, typer.Option(help="The dtype for a new variable.")
    ] = None,
    value_dtype: Annotated[str | None, typer.Option(help="The dtype for a new variable.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Load a table into a new or an existing variable. Importing an export with slots and scores restores every bit.

    Example: kvemb import pretrained.parquet store --variable items --key-column id --value-column embedding
    """
    from kvemb.tools.importing import import_table

    piped = source == PIPE
    screen = Screen(quiet, as_json)
    with screen.counting("import") as update:
        done = import_table(
            sys.stdin.buffer if piped else source,
            path,
            variable=variable,
            format=format,
            on_conflict=on_conflict,
            key_column=key_column,
            value_column=value_column,
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            progress=update,
        )
    lines = [
        ("variable", f"{done.variable}, {counted(done.rows, 'row')} now"),
        ("added", counted(done.added, "row")),
        ("replaced", counted(done.replaced, "row")),
        ("kept as they were", counted(done.kept, "row")),
    ]
    if done.made is not None:
        lines.insert(1, ("new, with", ", ".join(f"{what} {name}" for what, name in done.made.items())))
    screen.close(f"kvemb import {source}", lines, asdict(done))


export.__doc__ = f"{export.__doc__}\n\n    Formats: {_FORMATS}."
