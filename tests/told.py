"""What a command prints, for tests that read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvemb.tools.cli import run


def json_of(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    """Run a command with --json; returns what it printed."""
    assert run([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)
