"""The README is short, its code runs unchanged, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvemb.tools.cli import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", README, re.DOTALL | re.MULTILINE))
NEEDS = {"In PyTorch": [pytest.mark.needs("torch")], "In NumPy": []}


def test_a_reader_has_it_on_two_screens() -> None:
    assert len(README.encode()) <= 9 * 1024


@pytest.mark.parametrize("section", [pytest.param(name, marks=marks) for name, marks in NEEDS.items()])
def test_the_code_runs_and_running_it_again_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes: list[int] = []
    for _ in range(2):
        made: dict[str, Any] = {}
        exec(compile(BLOCKS[section], "README.md", "exec"), made)
        assert [path.name for path in tmp_path.iterdir() if f'"{path.name}"' not in BLOCKS[section]] == []
        sizes.append((made["words"].variable if "words" in made else made["users"]).stats.rows)
    assert 0 < sizes[0] <= sizes[1]
    assert "loss" not in made or made["loss"].item() < 0.05, "it learns: who guesses the mean has 1/16"


def test_no_block_is_left_out() -> None:
    assert sorted(BLOCKS) == sorted(NEEDS)
    assert len(BLOCKS) == README.count("```python")


def test_every_command_it_names_is_there() -> None:
    named = set(re.findall(r"`kvemb ((?:bench )?[a-z]+)\b", README))
    assert {"demo", "bench lookup"} <= named
    for command in named:
        assert run([*command.split(), "--help"]) == 0, command


def test_it_links_to_files_that_are_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README) + re.findall(r'src="([^"]+)"', README)
    assert "docs/pictures/tiers.svg" in links
    for link in links:
        assert (ROOT / link).exists(), link
