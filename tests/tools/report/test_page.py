"""docs/guides/offline.md: every command and example on it is run, in order; it names every command and format."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import app
from kvemb.tools.formats.known import FORMATS

pytest.importorskip("pyarrow")
PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "offline.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
CONSOLE = [line[2:] for block in BLOCKS for line in re.sub(r" \\\n *", " ", block).splitlines()]
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page says is there: a store and a series of two checkpoints."""
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    with (
        kvemb.open("store", memory_budget="8MiB") as store,
        kvemb.CheckpointManager("checkpoints") as series,
    ):
        users = store.get_variable(
            "users",
            dim=8,
            optimizer=kvemb.optimizers.Adagrad(),
            restrict_policy=kvemb.FrequencyRestrictPolicy(),
        )
        items = store.get_variable("items", dim=4)
        users.upsert(np.arange(200), chance.standard_normal((200, 8)).astype(np.float32))
        items.upsert(np.arange(20), chance.standard_normal((20, 4)).astype(np.float32))
        series.save(store)
        users.lookup(np.arange(50))
        users.apply_gradients(np.arange(60), np.ones((60, 8), np.float32))
        users.remove([199])
        series.save(store)
    return tmp_path


@pytest.mark.slow
def test_every_command_of_the_page_works(place):
    """One process for all, as each takes half a second to begin; what has a pipe is run by a shell."""
    run = "import sys; from kvemb.tools import main; main()"
    (place / "kvemb").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{run}' \"$@\"\n")
    (place / "kvemb").chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "COLUMNS": "120"}
    from kvemb.tools.cli import run as command

    assert len(CONSOLE) > 30
    for line in CONSOLE:
        if "|" in line:
            done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, (line, done.stderr)
        else:
            words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
            assert command(words[1:]) == 0, line
    with kvemb.open("copy", read_only=True) as store:
        assert store.variables["users"].size() == 50
        assert store.variables["parts"].size() == 199
    with kvemb.open("piped", read_only=True) as store:
        assert store.variables["users"].size() == 199


PEERS = [re.search(r"import (faiss|duckdb|pandas|torch)", block)[1] for block in PYTHON]


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=pytest.mark.needs(peer), id=peer) for peer, block in zip(PEERS, PYTHON, strict=True)],
)
def test_every_example_of_the_page_works(place, block):
    exec(compile(block, "offline.md", "exec"), {})


def test_it_names_every_command_and_format():
    shown = {part.split()[1] for line in CONSOLE for part in line.split("| ") if part.startswith("kvemb")}
    commands = {command.name for command in app.registered_commands if command.name} - {"demo"}
    assert commands <= shown
    for name in FORMATS:
        assert f"`{name}`" in PAGE
