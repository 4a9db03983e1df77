"""The `kvemb` command: its subcommands, `--version`, and the conversion of errors to one line and an exit code."""

from __future__ import annotations

import errno
import os
import select
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer

from kvemb.tools import stopping
from kvemb.tools.bench.command import app as bench
from kvemb.tools.commands.cluster import app as cluster
from kvemb.tools.commands.export_import import export, import_
from kvemb.tools.commands.look import diff, info, ls, peek, report, stats
from kvemb.tools.commands.maintain import compact, drop, migrate, restrict
from kvemb.tools.commands.push_pull import pull, push
from kvemb.tools.commands.restore import restore
from kvemb.tools.commands.verify import repair, verify
from kvemb.tools.demos.command import demo
from kvemb.tools.failures import INTERRUPTED, OK, READER_LEFT, explain

app = typer.Typer(
    name="kvemb",
    help="A persistent embedding store: tables larger than memory.",
    epilog="Exit codes: 0 done; 1 bad input, or damage found; 2 wrong usage; 3 the store is in use; 4 the disk is "
    "full, read-only or failing; 130 interrupted; 141 the reader of the output closed the pipe; 143 terminated.",
    add_completion=True,
    pretty_exceptions_enable=False,
)
_INSPECTING, _MOVING = (info, ls, peek, stats, diff, report, verify), (export, import_, migrate)
_MAINTAINING = (restore, restrict, compact, drop, repair, push, pull)
for command in (demo, *_INSPECTING, *_MOVING, *_MAINTAINING):
    # Keys may be negative; -5 is a key, not an option.
    settings = {"ignore_unknown_options": command is peek}
    app.command(command.__name__.rstrip("_"), context_settings=settings)(command)
app.add_typer(bench, name="bench")
app.add_typer(cluster, name="cluster")


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


@cache
def _command() -> Any:
    """Return the Click command that `app` describes, made once per process."""
    command = typer.main.get_command(app)
    _join_lines(command)
    return command


def _join_lines(command: Any) -> None:
    """Make each paragraph of the help texts one line, to be wrapped at the terminal's width: Typer keeps line ends.

    A paragraph that begins with \\b is a list, and keeps its lines.
    """
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(each[2:] if each.startswith("\b\n") else " ".join(each.split()) for each in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _join_lines(inner)


def run(arguments: list[str] | None = None) -> int:
    """Run the command on arguments (default: sys.argv) and return its exit code.

    A failure is one line on stderr. A traceback is printed only for bugs, or with KVEMB_TRACEBACK=1. SIGTERM ends the
    command as Ctrl-C does.
    """
    with stopping.signals_handled():
        try:
            return _run(arguments)
        finally:
            _finish_output()


def _run(arguments: list[str] | None) -> int:
    before = _output()
    try:
        result = _command()(args=arguments, prog_name="kvemb", standalone_mode=False)
        # Typer turns Ctrl-C into an exit code, older versions into Abort; `explain` treats both alike.
        failure: BaseException | None = stopping.interruption() if result == INTERRUPTED else None
        code = result if isinstance(result, int) else OK
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        broken = _broken_pipe(error)
        if broken is not None and _reader_left(before):
            _drop_output()
            return READER_LEFT
        if isinstance(error, SystemExit) and broken is None:
            raise
        failure, code = broken if broken is not None and isinstance(error, SystemExit) else error, OK
    if failure is None:
        return code
    explained = explain(failure)
    if explained is None or os.environ.get("KVEMB_TRACEBACK"):
        raise failure
    with suppress(OSError):  # if stderr is closed, too, only the exit code remains
        print(f"kvemb: {explained.line}", file=sys.stderr)
    return explained.code


def _finish_output() -> None:
    """Flush stdout, or discard its buffer: otherwise the interpreter fails to flush it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _broken_pipe(error: BaseException) -> OSError | None:
    """Return the EPIPE in an error's chain of causes, or None. Click and Rich replace it by a SystemExit."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno == errno.EPIPE:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _output() -> tuple[int, int, int] | None:
    """Return stdout's descriptor, device and inode; None if the caller of run() replaced stdout by a Python object."""
    try:
        number = sys.stdout.fileno()
        found = os.fstat(number)
    except OSError:
        return None
    return number, found.st_dev, found.st_ino


def _reader_left(before: tuple[int, int, int] | None) -> bool:
    """Whether the broken pipe is stdout, as with `| head`, and not a network connection.

    before: _output() at the start of the command. Rich replaces stdout by /dev/null when a pipe breaks.
    """
    if before is None or before != _output():
        return before is not None
    output = select.poll()
    output.register(before[0], 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
