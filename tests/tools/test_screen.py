"""The output of commands for variables with long names: each line is whole, whatever the width of the terminal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.screen import Screen, counted

NAMES = ["x" * 200, "a name of several words " * 8 + "x", "埋め込み表" * 40, "[bold]:smile:[/bold] [/red]" * 7, "users"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one store."""
    folder = tmp_path_factory.mktemp("screen")
    with kvemb.open(folder / "store", memory_budget="16MiB") as store:
        for name in NAMES:
            store.get_variable(name, dim=2, hot_rows=16).upsert(np.arange(1500), np.ones((1500, 2), np.float32))
        store.checkpoint(folder / "a")
        for name in NAMES:
            store.variables[name].upsert(np.arange(7), np.zeros((7, 2), np.float32))
        store.checkpoint(folder / "b")
    return folder


@pytest.mark.parametrize(
    ("command", "figure"),
    [
        *(("info b", "1,500 rows of 2 float32, keys int64"), ("verify b", "1,500 rows")),
        *(("diff a b", "7 changed; read from the recorded changes"), ("restore b made", "1,500 rows")),
    ],
)
def test_names_and_figures_are_whole_on_one_line(place, monkeypatch, capsys, command, figure):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(place)
    assert run(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        assert [line for line in lines if line.startswith(f"  {name} ") and line.endswith(f"  {figure}")], name
    assert run(["ls", "a"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{1500:>15,}  {name}" for name in sorted(NAMES)]


def test_one_row_is_not_called_rows():
    assert [counted(number, "row") for number in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]


def test_values_stand_below_each_other(capsys):
    Screen(False, False).close("t", [("rows", "1,234"), ("a long enough label", "5"), ("表", "6")], {})
    lines = ["t", "  rows                 1,234", "  a long enough label  5", "  表                   6"]
    assert capsys.readouterr().out.splitlines() == lines
