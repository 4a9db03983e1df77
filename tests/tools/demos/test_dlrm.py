"""`kvemb demo --dlrm` at a tiny size: kvemb and PyTorch train alike, and a killed run ends like an undisturbed one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvemb.installed import pip_install
from kvemb.tools.cli import run
from kvemb.tools.demos.sides import Outcome, Settings, run_side

COMMAND = ["demo", "--dlrm", "--steps", "8", "--batch", "64", "--dim", "4", "--budget", "8MiB", "--json"]


def almost_in_this_process(
    settings: Settings, stepped: Callable[[int, float], None], kill_at: int | None = None
) -> Outcome:
    """What run_side does; a process, which takes seconds to begin, only where it is to be killed."""
    if kill_at is not None:
        return run_side(settings, stepped, kill_at)
    from kvemb.tools.demos import dlrm_side

    said: list[dict[str, Any]] = []
    dlrm_side.run(settings, said.append)
    for number, each in enumerate(said[:-1]):
        stepped(number + 1, each["loss"])
    return Outcome(said[0]["step"], [each["loss"] for each in said[:-1]], **said[-1])


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_kvemb_trains_as_pytorch_does_and_ends_the_same_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("kvemb.tools.demos.run_dlrm.run_side", almost_in_this_process)
    assert run([*COMMAND, "--kill-at", "6"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["killed_at"], summary["resumed_the_same"]) == (6, True)
    assert 0 < summary["resumed_at"] <= 6, "at the newest checkpoint that was complete"
    assert summary["loss_difference"] < 1e-5
    assert summary["kvemb_auc"] == pytest.approx(summary["torch_auc"], abs=1e-3)
    assert summary["rows"] == summary["ids"] == sum(Settings(8, 64, 4, 0).log.sizes)
    assert 0 < summary["kvemb_anonymous_bytes"] < summary["anonymous_limit"]
    assert not list(tmp_path.glob("kvemb-*"))


@pytest.mark.needs("torch")
def test_a_budget_that_cannot_be_is_refused_before_anything_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--budget", "1KiB"]) == 1
    assert "memory_budget must be at least" in capsys.readouterr().err


def test_without_pytorch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvemb.tools.demos.run_dlrm.find_spec", lambda name: None)
    assert run(COMMAND) == 1
    assert capsys.readouterr().err == (f"kvemb: kvemb demo --dlrm needs PyTorch; install it: {pip_install('torch')}\n")
