"""`kvemb export` and `kvemb import`: the commands of kvemb.tools.export and kvemb.tools.importing."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kvemb.masking import masked
from kvemb.tools.destinations import PIPE
from kvemb.tools.formats.known import FORMATS, names
from kvemb.tools.limits import MAX_JOBS, MAX_PARTS
from kvemb.tools.screen import PLACE, AsJson, Every, Quiet, Screen, Variable, check_one, counted, local_path

_FORMATS = "\n".join(f"    {kind.name}: {kind.what}" for kind in FORMATS.values() if not kind.imported_only)


def export(
    path: Annotated[str, typer.Argument(metavar="PATH", help=PLACE)],
    out: Annotated[str, typer.Argument(metavar="OUT", help="A new file or folder, a URL, or - for a pipe.")],
    variable: Variable = None,
    format: Annotated[
        str | None, typer.Option(help="The output format, see above. Default: chosen by the ending of OUT.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Export only rows that meet this condition, such as 'score >= 3 and key in 0..999'."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Export only rows that changed since this earlier checkpoint, and the keys removed since."),
    ] = None,
    dtype: Annotated[
        Literal["float16", "bfloat16", "int8"] | None, typer.Option(help="Convert the values to this dtype.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale each row to norm 1.")] = False,
    with_slots: Annotated[bool, typer.Option("--with-slots", help="Also export the optimizer's slots.")] = False,
    with_scores: Annotated[bool, typer.Option("--with-scores", help="Also export scores and steps.")] = False,
    partitions: Annotated[
        int, typer.Option(min=1, max=MAX_PARTS, help="Write this many files, one per key range, to the folder OUT.")
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Number of processes that write the partitions.")] = 1,
    every: Every = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Export a variable to a file, in key order. Memory does not grow with the table.

    With --all and --format, all variables are exported to the new folder OUT, each to a file of its name.

    Example: kvemb export checkpoints/00000042 users.parquet --variable users --with-slots --with-scores
    """
    from kvemb.tools import export as tool

    check_one(variable, every)
    piped = out == PIPE
    screen = Screen(quiet or piped, as_json)
    with screen.counting("export") as update:
        options: dict[str, Any] = {
            "format": format,
            "where": where or [],
            "since": since,
            "dtype": dtype,
            "normalize": normalize,
            "with_slots": with_slots,
            "with_scores": with_scores,
            "partitions": partitions,
            "jobs": jobs,
            "progress": update,
        }
        if every:
            done = tool.export_all(path, out, **options)
        else:
            done = [tool.export(path, sys.stdout.buffer if piped else out, variable=variable, **options)]
    if piped:
        return
    lines = []
    for each in done:
        lines += [
            ("variable", each.variable),
            ("wrote", f"{counted(each.rows, 'row')} as {each.format} to {masked(each.out)}"),
        ]
        if since is not None:
            lines.append(("removed", f"{counted(each.removed, 'key')}, in {masked(tool.path_of_removed(each.out))}"))
        if each.left_out:
            lines.append(("note", f"without {' and '.join(each.left_out)}: training cannot continue"))
    told = [{**asdict(each), "out": masked(each.out)} for each in done]
    screen.close(f"kvemb export {path}", lines, {"variables": told} if every else told[0])


def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file, a folder, a URL, or - for a pipe.")],
    path: Annotated[
        Path, typer.Argument(metavar="PATH", parser=local_path, help="A store. It is created if it does not exist.")
    ],
    variable: Annotated[
        str | None, typer.Option(help="The variable's name. Default: the name stored in SOURCE, or SOURCE's own name.")
    ] = None,
    format: Annotated[str | None, typer.Option(help=f"{names()}. Default: chosen by the ending of SOURCE.")] = None,
    on_conflict: Annotated[
        Literal["replace", "keep", "error"], typer.Option(help="What to do if a key already has a row.")
    ] = "error",
    key_column: Annotated[str | None, typer.Option(help="The column that has the keys.")] = None,
    value_column: Annotated[
        str | None, typer.Option(help="The column that has the values. Of several matrices: the name of one.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="The keys of a matrix's rows: a .npy file, or text, one a line. Default: the row numbers."),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="The optimizer of a new variable, such as adagrad:0.1; see kvemb migrate.")
    ] = None,
    key_dtype: Annotated[
        Literal["int64", "int32", "uint64", "string"] | None, typer.Option(help="The key dtype of a new variable.")
    ] = None,
    hash_keys: Annotated[
        bool, typer.Option("--hash-keys", help="Make int64 keys of words, with kvemb.hash_strings.")
    ] = False,
    name_bytes: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="The most bytes of a string key of a new variable. Default: 32."),
    ] = None,
    value_dtype: Annotated[str | None, typer.Option(help="The value dtype of a new variable.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Import a file into a new or an existing variable.

    Importing an export that was made with --with-slots and --with-scores restores every bit.

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
            keys=keys,
            optimizer=optimizer,
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            hash_keys=hash_keys,
            name_bytes=name_bytes,
            progress=update,
        )
    lines = [
        ("variable", f"{done.variable}, {counted(done.rows, 'row')} now"),
        ("added", counted(done.added, "row")),
        ("replaced", counted(done.replaced, "row")),
        ("kept as they were", counted(done.kept, "row")),
    ]
    if done.slots:
        lines.append(("slots", f"those of the source: {', '.join(done.slots)}"))
    if done.duplicates:
        which = "first" if on_conflict == "keep" else "last"
        lines.append(("left out", f"{counted(done.duplicates, 'row')} whose key occurs twice; the {which} row stayed"))
    if done.made is not None:
        lines.insert(1, ("new, with", ", ".join(f"{what} {name}" for what, name in done.made.items())))
    screen.close(f"kvemb import {source}", lines, asdict(done))


# \b: a list, whose lines are kept.
export.__doc__ = f"{export.__doc__}\n    \b\n    Formats:\n{_FORMATS}\n"
