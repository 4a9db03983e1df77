"""Real pip in a fresh environment: what a wheel holds, and that what is installed and removed leaves nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"kvemb": "kvemb", "backends": "kvemb/backends", "tools": "kvemb/tools"}
PROGRAM = """
import tempfile, numpy, kvemb
with tempfile.TemporaryDirectory() as folder, kvemb.open(folder) as store:
    table = store.get_variable("table", dim=2)
    table.upsert([1], numpy.ones((1, 2), "f4"))
    assert table.lookup([1]).tolist() == [[1, 1]]
print(kvemb.__file__)
"""
pytestmark = pytest.mark.slow


class Environment:
    """A fresh environment that finds this one's packages, but not its kvemb; a checkout without build products."""

    def __init__(self, place: Path) -> None:
        self.place, self.checkout = place, place / "checkout"
        self.python = place / "venv" / "bin" / "python"
        venv.create(place / "venv")  # this environment's pip installs into it
        (self.packages,) = (place / "venv" / "lib").glob("python*/site-packages")
        # Of a folder that is named in a .pth file, other .pth files are not read: this environment's editable kvemb.
        (self.packages / "dependencies.pth").write_text(str(Path(numpy.__file__).parents[1]))
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.checkout)
        self.pip("wheel", "--no-deps", "--wheel-dir", str(place), ".")
        (self.wheel,) = place.glob("*.whl")
        shutil.rmtree(self.checkout / "build")

    def run(self, *command: Any, cwd: Path) -> str:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def pip(self, *words: str) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.python, "--quiet", "--disable-pip-version-check")
        self.run(*pip, *words, cwd=self.checkout)

    def used(self) -> Path:
        """Where the kvemb lies that a program imports, which uses a table."""
        return Path(self.run(self.python, "-c", PROGRAM, cwd=self.place))

    def used_in_checkout(self) -> Path:
        """The same, where Python is started in the checkout."""
        return Path(self.run(self.python, "-c", PROGRAM, cwd=self.checkout))

    def left(self) -> list[str]:
        """What of kvemb is in the environment."""
        return [path.name for path in self.packages.iterdir() if "kvemb" in path.name]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: Any) -> Environment:
    return Environment(tmp_path_factory.mktemp("fresh"))


def test_a_wheel_holds_kvemb_and_nothing_else(environment: Environment) -> None:
    names = [name for name in zipfile.ZipFile(environment.wheel).namelist() if ".dist-info/" not in name]
    expected = ["kvemb/py.typed"]
    for folder, package in FOLDERS.items():
        files = [path for kind in ("*.py", "*.cu") for path in (ROOT / folder).rglob(kind)]
        expected += [f"{package}/{path.relative_to(ROOT / folder).as_posix()}" for path in files]
    assert sorted(names) == sorted(expected)


def test_an_installed_kvemb_has_no_parts_beside_it(environment: Environment) -> None:
    """A folder backends/ or tools/ there is another package's, and so is a pyproject.toml."""
    environment.pip("install", "--no-deps", "--no-compile", "--force-reinstall", str(environment.wheel))
    others = [environment.packages / name / "__init__.py" for name in ("backends", "tools")]
    for path in others:
        path.parent.mkdir()
        path.write_text("raise AssertionError")
    (environment.packages / "pyproject.toml").write_text('[project]\nname = "of_somebody"\n')
    assert environment.used().is_relative_to(environment.packages)
    shutil.move(environment.packages / "kvemb" / "backends", environment.place / "moved")
    with pytest.raises(AssertionError, match=r"No module named .kvemb\.backends"):
        environment.used()
    shutil.move(environment.place / "moved", environment.packages / "kvemb" / "backends")
    for path in others:
        shutil.rmtree(path.parent)
    (environment.packages / "pyproject.toml").unlink()


def test_one_way_of_installing_follows_another_and_removing_leaves_nothing(environment: Environment) -> None:
    """numba's files stayed in site-packages/kvemb, which Python then took for the package."""
    wheel = ((str(environment.wheel),), environment.packages)
    for words, place in [wheel, (("-e", "."), environment.checkout), wheel]:
        environment.pip("install", "--no-deps", "--no-compile", "--force-reinstall", *words)
        assert environment.used().is_relative_to(place)
        assert environment.used_in_checkout().is_relative_to(environment.checkout)
    environment.pip("uninstall", "--yes", "kvemb")
    assert environment.left() == []
    kinds = {path.suffix for folder in FOLDERS for path in (environment.checkout / folder).rglob("*") if path.is_file()}
    assert kinds <= {".py", ".pyc", ".cu", ".typed"}
