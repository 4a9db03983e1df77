"""The code of the README runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvemb.tools.cli import run

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


BLOCKS = dict(re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", README, re.DOTALL | re.MULTILINE))


NEEDS = {name: [pytest.mark.needs("torch")] if "import torch" in block else [] for name, block in BLOCKS.items()}


@pytest.mark.parametrize("section", [pytest.param(name, marks=NEEDS[name]) for name in BLOCKS])
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # running the code again continues
        exec(compile(BLOCKS[section], "README.md", "exec"), {})
        assert [path.name for path in tmp_path.iterdir() if f'"{path.name}"' not in BLOCKS[section]] == []


def test_no_block_is_left_out() -> None:
    assert len(BLOCKS) == README.count("```python") >= 3


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_training_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes: list[int] = []
    losses: list[float] = []
    for _ in range(3):
        made: dict[str, Any] = {}
        exec(compile(BLOCKS["Training with PyTorch"], "README.md", "exec"), made)
        losses.append(made["last"].extra["loss"])
        sizes.append(made["last"].variables["words"].rows)
    assert losses[-1] < 0.3, "it learns: who guesses has log(2) = 0.69"
    assert sizes == sorted(set(sizes)), "each run adds rows to those of the one before"
    assert [path.name for path in sorted((tmp_path / "words").glob("0*"))] == ["00000002", "00000003", "00000004"]


def test_every_command_it_names_is_there() -> None:
    commands = "demo|drop|verify|repair|push|pull|info|peek|stats|diff|report|export|import|migrate"
    named = set(re.findall(rf"`kvemb ((?:bench|stress) [a-z]+|{commands})\b", README))
    assert {"demo", "bench lookup", "stress random"} <= named
    for command in named:
        assert run([*command.split(), "--help"]) == 0, command


def test_the_figures_at_its_top_are_those_of_the_measurements() -> None:
    top, measured = (README.partition(begin)[2] for begin in ("**How fast**", "## Measurements"))
    figures = re.findall(r"\d+\.\d+", top.partition("\n\n")[0])
    assert len(figures) >= 3
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", measured), figure


def test_it_links_to_files_that_are_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    for link in links:
        assert (Path(__file__).parent.parent / link).exists(), link
