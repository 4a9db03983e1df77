"""Output that nobody can read: at most one line, an exit code, and never a traceback."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from programs import KVEMB
from unread import run_unread

import kvemb
from kvemb.tools.cli import run

pytestmark = pytest.mark.slow

TINY = "demo --clicks 3000 --dim 4 --batch 256 --budget 8MiB"
EXPORTS = [f"export store - --format {name}" for name in ("csv", "arrow")]
CLOSED = "kvemb: stdout is closed; to discard the output, redirect it to /dev/null\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    with kvemb.open(folder / "store", memory_budget="8MiB") as store:
        store.get_variable("table", dim=1).upsert(np.arange(100_000), np.ones((100_000, 1), np.float32))
        store.checkpoint(folder / "checkpoint")
    return folder


def shell(place: Path, line: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", line.replace("kvemb", shlex.join(KVEMB))]
    return subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("command", ["nonsense", "export store - --format csv"])
def test_a_stdout_that_is_closed_is_told_before_anything_is_done(place, command):
    done = shell(place, f"kvemb {command} >&-")
    assert (done.returncode, done.stderr) == (1, CLOSED)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        *(("kvemb info nowhere 2>&-", 1), ("kvemb info store <&- 2>&-", 0)),
        *(("kvemb info store >&- 2>&-", 1), ("kvemb migrate store new --dim 2 <&-", 2)),
    ],
)
def test_what_else_is_closed_changes_no_exit_code(place, line, code):
    done = shell(place, line)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 1


def test_an_import_from_a_closed_pipe_is_one_line(place):
    done = shell(place, "kvemb import - new --format csv <&-")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "has no column 'key'" in done.stderr
    assert not (place / "new").exists()


@pytest.mark.parametrize(
    "command",
    ["info store --json", "--help", "diff store checkpoint", "ls store", *EXPORTS, TINY],
)
def test_a_reader_that_goes_away_ends_the_command(place, command):
    done = run_unread([*KVEMB, *command.split()], place)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_failure_whose_reader_went_away_keeps_its_exit_code(place):
    assert run_unread([*KVEMB, "info", "nowhere"], place, errors_too=True).returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["info store", "export store - --format csv"])
def test_a_full_disk_behind_stdout_is_told(place, command):
    done = shell(place, f"kvemb {command} > /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
    assert "the disk is full" in done.stderr


def test_a_socket_that_breaks_is_no_reader_of_the_output(place, monkeypatch, capsys):
    def broken(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("kvemb.tools.inspect.info", broken)
    assert run(["info", str(place / "store")]) == 1
    assert "Broken pipe" in capsys.readouterr().err
