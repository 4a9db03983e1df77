"""The `kvemb` command: its verbs, `--version`, and the one place where an error becomes one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from kvemb.tools.bench.command import app as bench
from kvemb.tools.commands.look import diff, info, ls, peek, report, stats
from kvemb.tools.commands.move import export, import_
from kvemb.tools.commands.restore import restore
from kvemb.tools.commands.tend import compact, drop, migrate, restrict
from kvemb.tools.commands.travel import pull, push
from kvemb.tools.commands.verify import repair, verify
from kvemb.tools.demos.command import demo
from kvemb.tools.failures import OK, READER_LEFT, explain
from kvemb.tools.stress.command import app as stress

app = typer.Typer(
    name="kvemb",
    help="A persistent embedding store: tables larger than memory.",
    epilog="Exit codes: 0 done, 1 bad input or damage, 2 wrong usage, 3 store in use, 4 the disk refused, "
    "130 interrupted, 141 whoever read the output went away.",
    add_completion=True,
    pretty_exceptions_enable=False,
)
_LOOKING, _MOVING = (info, ls, peek, stats, diff, report, verify), (export, import_, migrate)
_TENDING = (restore, restrict, compact, drop, repair, push, pull)
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
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if _reader_left(error):
            return READER_LEFT
        if isinstance(error, SystemExit):
            raise
        failure, code = error, OK
    if failure is None:
        return code
    told = explain(failure)
    if told is None or os.environ.get("KVEMB_TRACEBACK"):
        raise failure
    print(f"kvemb: {told.line}", file=sys.stderr)
    return told.code


def _reader_left(error: BaseException) -> bool:
    """Whether the pipe that takes the output was closed, as by `| head`. What is left to be written then goes nowhere.

    Click and Rich make it a SystemExit of theirs.
    """
    seen: BaseException | None = error if isinstance(error, OSError) else error.__context__
    if not isinstance(error, (OSError, SystemExit)) or getattr(seen, "errno", None) != errno.EPIPE:
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return True
