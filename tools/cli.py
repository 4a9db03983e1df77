"""The `kvemb` command: its verbs, `--version`, and the one place where an error becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from kvemb.tools.bench import app as bench
from kvemb.tools.command_look import diff, info, ls, peek, report, stats
from kvemb.tools.command_move import export, import_
from kvemb.tools.command_tend import compact, migrate, restrict
from kvemb.tools.command_travel import pull, push
from kvemb.tools.command_verify import repair, verify
from kvemb.tools.demo import demo
from kvemb.tools.failures import OK, explain
from kvemb.tools.stress import app as stress

app = typer.Typer(
    name="kvemb",
    help="A persistent embedding store: tables larger than memory.",
    epilog="Exit codes: 0 done, 1 bad input or damage, 2 wrong usage, 3 store in use, 4 the disk refused, "
    "130 interrupted.",
    add_completion=True,
    pretty_exceptions_enable=False,
)
_LOOKING, _MOVING = (info, ls, peek, stats, diff, report, verify), (export, import_, migrate)
_TENDING = (restrict, compact, repair, push, pull)
for command in (demo, *_LOOKING, *_MOVING, *_TENDING):
    # Keys may be negative, and are no options.
    settings = {"ignore_unknown_options": command is peek}
    app.command(command.__name__.rstrip("_"), context_settings=settings)(command)
app.add_typer(bench, name="bench")
app.add_typer(stress, name="stress")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvemb {version('kvemb')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: list[str] | None = None) -> int:
    """Run the command on arguments (default: sys.argv) and return its exit code.

    What goes wrong is told in one line on stderr. A traceback is for a bug, or for KVEMB_TRACEBACK=1.
    """
    try:
        result = app(args=arguments, prog_name="kvemb", standalone_mode=False)
        # Typer turns Ctrl-C into an exit code, older ones into Abort; both come out of `explain` the same.
        failure: BaseException | None = KeyboardInterrupt() if result == 130 else None
        code = result if isinstance(result, int) else OK
    except (Exception, KeyboardInterrupt) as error:
        failure, code = error, OK
    if failure is None:
        return code
    told = explain(failure)
    if told is None or os.environ.get("KVEMB_TRACEBACK"):
        raise failure
    print(f"kvemb: {told.line}", file=sys.stderr)
    return told.code
