"""What the README shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvemb.tools.cli import app

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_every_command_it_names_is_there() -> None:
    commands = "demo|verify|repair|push|pull|info|peek|stats|diff|report|export|import|migrate"
    named = set(re.findall(rf"`kvemb ((?:bench|stress) [a-z]+|{commands})\b", README))
    assert {"demo", "bench lookup", "stress random"} <= named
    for command in named:
        result = CliRunner().invoke(app, [*command.split(), "--help"])
        assert result.exit_code == 0, command


def test_it_links_to_files_that_are_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    for link in links:
        assert (Path(__file__).parent.parent / link).exists(), link
