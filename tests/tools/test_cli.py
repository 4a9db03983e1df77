"""The `kvemb` command as its users run it: a process, its output, its exit code, and what it leaves behind."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from programs import KVEMB, run_python
from typer.models import ArgumentInfo, OptionInfo
from waiting import wait_until

import kvemb as library
from kvemb.installed import pip_install
from kvemb.tools.cli import _command, app, run

TINY = ["--clicks", "3000", "--dim", "4", "--batch", "256", "--budget", "8MiB"]
PATIENCE = 300  # seconds; a machine's first run compiles


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}


def test_the_demo_prints_json_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["demo", "--json", "--seed", "7", *TINY]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(arguments) == 0
    here = capsys.readouterr()
    # In a process of its own, whose memory grows: here the demo may use memory that earlier tests have freed.
    alone = subprocess.run(
        [*KVEMB, *arguments], capture_output=True, text=True, check=True, timeout=PATIENCE, env=environment(tmp_path)
    )
    assert (here.err, alone.stderr) == ("", "")
    first, summary = json.loads(here.out), json.loads(alone.stdout)
    found = [[each[name] for name in ("rows", "checkpoint", "trained")] for each in (first, summary)]
    assert found[0] == found[1], "the same seed gives the same figures"
    assert summary["reopened"] == summary["checkpoint"]
    assert summary["rows"] > 100
    assert summary["anonymous_bytes"] > summary["before_bytes"] > 0
    assert summary["budget_bytes"] == 8 << 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_with_the_hit_rate(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {**environment(tmp_path), "TERM": "xterm"}
    process = subprocess.Popen(
        [*KVEMB, "demo", "--clicks", "20000", *TINY[2:]], stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(ours)
    assert process.wait(timeout=PATIENCE) == 0
    assert b"training" in shown
    assert b"compiling kernels, once" in shown
    assert shown.index(b"compiling kernels, once") < shown.index(b"hit rate ")


@pytest.mark.slow
def test_what_the_demo_says_to_type_next_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a place"
    demo = ["demo", *TINY, "--dir", str(here), "--keep"]
    assert run(demo) == 0
    shown = capsys.readouterr().out
    assert f"kept: {here}\n" in shown
    assert sorted(path.name for path in here.iterdir()) == ["checkpoint", "store"]
    commands = [shlex.split(line.removeprefix("next: ")) for line in shown.splitlines() if line.startswith("next: ")]
    assert [command[1] for command in commands] == ["info", "stats", "peek", "diff", "report"]
    for command in commands:
        assert run(command[1:]) == 0, command
        capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert run([*demo[:-3], "--quiet"]) == 0
    assert "next:" not in capsys.readouterr().out


def test_keep_leaves_a_store_that_opens_and_tells_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(["demo", *TINY, "--keep", "--quiet"]) == 0
    (kept,) = (path for path in tmp_path.iterdir() if path.name.startswith("kvemb-demo-"))
    shown = capsys.readouterr().out
    assert f"kept: {kept}\n" in shown
    assert "half way: " not in shown
    assert sorted(path.name for path in kept.iterdir()) == ["checkpoint", "store"]
    with library.open(kept / "store", memory_budget="8MiB") as store:
        assert sorted(store.variables) == ["click_rate", "item", "user"]
        assert store.variables["user"].size() > 100
    assert run(["demo", *TINY]) == 0
    shown = capsys.readouterr().out
    assert "next: kvemb demo --keep --dir here" in shown
    assert "half way: held-out AUC" in shown
    assert "\x1b" not in shown, "there is no bar without a terminal"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(15, 143, marks=pytest.mark.slow)])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    process = subprocess.Popen(
        [*KVEMB, "demo", *TINY, "--clicks", "50000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    wait_until(lambda: list(tmp_path.glob("kvemb-demo-*/store/*")))
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert told == f"kvemb: {'interrupted' if code == 130 else 'terminated'}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_in_one_line(tmp_path: Path) -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))

    command = ["demo", *TINY[2:], "--clicks", "100000"]
    done = run_python(KVEMB[-1], *command, cwd=tmp_path, env=environment(tmp_path), preexec_fn=limit_files)
    assert done.returncode == 4, done.stderr
    warning, message = done.stderr.splitlines()
    assert "is closed without a new durable point" in warning
    assert message.startswith("kvemb: the disk refused: ")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['rich'] = None; from kvemb.tools import main; main()"
    done = run_python(code)
    assert done.returncode == 1
    assert pip_install("tools") in done.stderr
    assert done.stderr.count("\n") == 1


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvemb 0.")
    assert run([]) == 0
    assert "demo" in capsys.readouterr().out


def test_no_help_has_brackets_which_rich_takes_for_markup_and_leaves_out() -> None:
    waiting: list[Any] = [_command()]
    texts = []
    for command in waiting:
        waiting += getattr(command, "commands", {}).values()
        texts += [command.help, command.epilog, *(getattr(each, "help", None) for each in command.params)]
    assert len(texts) > 300
    assert [text for text in texts if "[" in (text or "")] == []


@pytest.mark.slow
def test_commands_load_only_what_they_use(tmp_path: Path) -> None:
    """numba and pyarrow take half a second to load, longer than all else that these commands do."""
    with library.open(tmp_path / "store", memory_budget="8MiB") as store:
        store.get_variable("table", dim=1)
    commands = [["--version"], ["--help"], ["export", "--help"], ["info", "store"], ["ls", "store", "--files"]]
    heavy = {"numba", "pyarrow", "rocksdict", "multiprocessing", "kvemb.tools.demos.run_clicks", "kvemb.tools.migrate"}
    code = f"import sys; from kvemb.tools.cli import run; print(*map(run, {commands}), {heavy} & {{*sys.modules}})"
    done = run_python(code, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["0 0 0 0 0 set()"], (done.stdout, done.stderr)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvemb.tools.demos.run_clicks.run", lambda *_: {}["bug"])
    with pytest.raises(KeyError):
        run(["demo", *TINY])


def test_a_group_without_a_command_says_what_is_missing(capsys):
    assert run(["bench"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "kvemb: name a command (see kvemb bench --help)"


def test_all_commands_name_a_variable_and_a_store_in_one_way():
    """A variable is an option; the checkpoint or store that a command reads or changes is the argument PATH."""
    arguments, options = {}, {}
    for command in app.registered_commands:
        hints = get_type_hints(command.callback, include_extras=True)
        kinds = {
            name: next(each for each in get_args(hint)[::-1] if hasattr(each, "help"))
            for name, hint in hints.items()
            if get_args(hint)
        }
        arguments[command.name] = {name for name, kind in kinds.items() if isinstance(kind, ArgumentInfo)}
        options[command.name] = {name for name, kind in kinds.items() if isinstance(kind, OptionInfo)}
    assert {name for name, found in options.items() if "variable" in found} == {
        *("peek", "stats", "diff", "export", "import", "restore", "restrict", "drop", "migrate"),
    }
    assert not any("variable" in found for found in arguments.values())
    assert {name for name, found in arguments.items() if "path" not in found} == {"demo", "diff", "push", "pull"}
    # An output that a command must write is the argument OUT; one that it can do without is the option --out.
    assert {name for name, found in arguments.items() if "out" in found} == {
        *("report", "export", "migrate", "restore", "repair"),
    }
    assert {name for name, found in options.items() if "out" in found} == {"diff"}


def test_the_reference_describes_every_command():
    """docs/reference/cli.md makes sections of commands, and a table of each group whose commands it does not name."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    described = {name for names in re.findall(r"^```{commands} (.*)$", page, re.MULTILINE) for name in names.split()}
    tables = set(re.findall(r"^```{command-table} (.*)$", page, re.MULTILINE))
    found = {}
    for name, command in _command().commands.items():
        inner = getattr(command, "commands", None)
        found |= (
            {name: command} if inner is None or name in tables else {f"{name}/{each}": inner[each] for each in inner}
        )
    assert set(found) == described | tables
