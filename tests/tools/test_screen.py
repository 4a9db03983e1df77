"""The output of commands for variables with long names: names are folded over lines, figures never."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from quick import quick
from rich.cells import cell_len

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.screen import Screen

NAMES = {
    "plain": "x" * 200,
    "slashes": "/".join(["towers", "users", "embeddings_of_2026"] * 9)[:200],
    "words": ("a name of several words " * 9)[:199],
    "wide": "埋め込み表" * 40,
    "emoji": "🙂🚀" * 100,
    "markup": "[bold]:smile:[/bold] [/red]" * 7,
    "short": "users",
}
# Figures have no more cells; what is longer, such as an id or a path, folds.
LONGEST = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one store, by the names of their folders."""
    folder = tmp_path_factory.mktemp("screen")
    with kvemb.open(folder / "store", memory_budget="16MiB") as store:
        for name in NAMES.values():
            variable = store.get_variable(name, dim=2, hot_rows=16, optimizer=kvemb.optimizers.Adagrad(0.125))
            variable.upsert(np.arange(1500), np.ones((1500, 2), np.float32))
        store.checkpoint(folder / "a")
        for at, name in enumerate(NAMES.values()):
            keys = np.arange(1100 + at) * 10**15
            store.variables[name].upsert(keys, np.full((len(keys), 2), 1e20, np.float32))
        store.checkpoint(folder / "b")
    return folder


def columns(shown: str) -> tuple[list[str], list[str]]:
    """The lines of both columns of a closing table."""
    lines = [line.split("│") for line in shown.splitlines() if "│" in line]
    assert all(len(line) == 4 for line in lines), shown
    return [line[1] for line in lines], [line[2] for line in lines]


def words(lines: list[str]) -> list[str]:
    """What must stand whole."""
    return [word for word in " ".join(lines).split() if cell_len(word) <= LONGEST]


COMMANDS = [["info", "b"], ["verify", "b"], ["diff", "a", "b"], ["repair", "b"]]
COMMANDS += [[command, "b", "--variable", name] for command in ("stats", "peek") for name in NAMES.values()]


@pytest.fixture(scope="module")
def widest() -> dict[str, str]:
    """What commands show where nothing folds, by the command; filled by the tests."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("width", quick([40, 80]))
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command[0]}-{command[-1][:8]}")
def test_figures_stand_whole_and_names_fold(place, widest, monkeypatch, capsys, command, width):
    def show(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run(command if command[0] != "repair" else [*command, f"mended-{len(NAMES)}-{columns}"]) == 0
        shutil.rmtree(f"mended-{len(NAMES)}-{columns}", ignore_errors=True)
        return str(capsys.readouterr().out)

    monkeypatch.chdir(place)
    if " ".join(command) not in widest:
        widest[" ".join(command)] = show(5000)
    shown = [widest[" ".join(command)], show(width)]
    assert max(map(cell_len, shown[1].splitlines())) <= width
    (names, values), (folded, narrow) = map(columns, shown)
    lost = Counter(words(values)) - Counter(words(narrow))
    assert [word for word in lost if not word.startswith("mended")] == []
    assert "".join("".join(folded).split()) == "".join("".join(names).split())
    for name in NAMES.values() if command[0] in ("info", "verify", "diff", "repair") else ():
        assert "".join(name.split()) in "".join("".join(folded).split())


@pytest.mark.parametrize("width", [80, 40])
def test_lists_have_the_figure_first_and_the_name_whole(place, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["ls", str(place / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{1500:>15,}  {name}" for name in sorted(NAMES.values())]


@pytest.mark.slow
def test_on_a_terminal_of_40_columns(place):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-c", "from kvemb.tools import main; main()", "verify", "a"]
    with subprocess.Popen(command, cwd=place, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}) as it:
        os.close(theirs)
        shown = b""
        while part := _read(ours):
            shown += part
    os.close(ours)
    assert it.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n")
    names, values = columns(text)
    assert [value.strip() for value in values].count("1,500 rows") == len(NAMES)
    assert "".join(NAMES["emoji"].split()) in "".join("".join(names).split())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux tells that the other side is closed
        return b""


@pytest.mark.parametrize("width", [1, 8, 20])
def test_a_screen_of_no_room_is_no_failure(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    Screen(False, False).close("title", [("x" * 200, "1,234,567 rows"), ("", "")], {})
    assert capsys.readouterr().out


def test_tables_with_room_are_as_wide_as_their_texts(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    Screen(False, False).close("t", [("rows", "1,234"), ("a long enough label", "5")], {})
    assert "│ rows                │ 1,234 │" in capsys.readouterr().out
