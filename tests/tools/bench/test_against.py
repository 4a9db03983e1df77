"""`kvemb bench train --against`: where another version comes from, and a tiny run beside one."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvemb.tools.bench.cold.versions import unpack
from kvemb.tools.bench.command import app
from kvemb.tools.failures import BadInput

ROOT = Path(__file__).parents[3]


CHECKOUT = ("kvemb/__init__.py", "kvemb/rows/block.py", "backends/cpu.py", "tools/cli.py", "tests/test_x.py")
JOINED = ["kvemb/__init__.py", "kvemb/backends/cpu.py", "kvemb/rows/block.py", "kvemb/tools/cli.py"]
TINY = ["--rows", "3000", "--dim", "8", "--batch", "256", "--hot-rows", "300", "--budget-mib", "32"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a version consists of, as empty files."""
    place = tmp_path / "checkout"
    for name in CHECKOUT:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    return place


def files(version: str, target: Path) -> list[str]:
    """The files of an unpacked version."""
    unpack(version, target)
    return sorted(path.relative_to(target).as_posix() for path in target.rglob("*.py"))


def test_a_checkout_and_a_wheel_are_unpacked_as_a_package(checkout: Path, tmp_path: Path) -> None:
    assert files(str(checkout), tmp_path / "one") == JOINED
    with zipfile.ZipFile(tmp_path / "kvemb.whl", "w") as wheel:
        for name in JOINED:
            wheel.writestr(name, "")
    assert files(str(tmp_path / "kvemb.whl"), tmp_path / "other") == JOINED
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="does not contain kvemb"):
        unpack(str(tmp_path / "empty"), tmp_path / "target")


def test_a_revision_is_taken_from_the_repository_here(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.chdir(checkout / "tests")
    as_somebody = ["-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q", ".."], ["add", "-A", ".."], [*as_somebody, "commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run(["git", *words], check=True)
    (checkout / "kvemb" / "later.py").touch()
    assert files("v1", tmp_path / "target") == JOINED
    with pytest.raises(BadInput, match="v2 is not a checkout, a wheel or a revision of the repository here: fatal"):
        unpack("v2", tmp_path / "none")


@pytest.mark.slow
def test_two_versions_take_the_same_steps(tmp_path: Path) -> None:
    words = [*TINY, "--steps", "3", "--runs", "1", "--against", str(ROOT), "--folder", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, ["train", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [line["unit"] for line in report["lines"]] == ["rows/s", "ns CPU a row"] * 3
    assert all(line["ours"]["median"] > 0 and line["peer"]["median"] > 0 for line in report["lines"])
    assert report["facts"]["rows_compared"] > 0
    assert len(set(report["facts"]["paths"])) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_version_that_does_not_run_is_named(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    words = [*TINY, "--steps", "1", "--runs", "1", "--against", str(checkout), "--folder", str(tmp_path / "work")]
    with pytest.raises(BadInput, match=r"the process of .*checkout failed at 'load'"):
        CliRunner().invoke(app, ["train", *words], catch_exceptions=False)
    assert list((tmp_path / "work").iterdir()) == []
