"""A source tree works as it is; advice to install an extra names where this kvemb is from."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from conftest import is_installed

import kvemb
from kvemb import installed

ROOT = Path(__file__).parents[1]

FROM = {
    "pip install 'kvemb[torch]'": None,
    "pip install -e '/my work/kvemb[torch]'": {"url": "file:///my%20work/kvemb", "dir_info": {"editable": True}},
    "pip install '/src/kvemb[torch]'": {"url": "file:///src/kvemb", "dir_info": {}},
    "pip install 'kvemb[torch] @ file:///tmp/kvemb-0.1.0-py3-none-any.whl'": {
        "url": "file:///tmp/kvemb-0.1.0-py3-none-any.whl",
        "archive_info": {},
    },
    "pip install 'kvemb[torch] @ git+https://example.org/kvemb@main'": {
        "url": "https://example.org/kvemb",
        "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "0" * 40},
    },
}


@pytest.mark.parametrize("command", FROM)
def test_an_extra_is_added_to_what_is_installed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout, setuptools' metadata are found before pip's; without either, an index is assumed."""
    texts = [None, json.dumps(FROM[command])] if FROM[command] else []
    found = [SimpleNamespace(read_text=lambda file, text=text: text) for text in texts]
    monkeypatch.setattr(installed, "distributions", lambda name: found)
    assert installed.pip_install("torch") == command
    assert shlex.split(installed.pip_install()) == shlex.split(command.replace("[torch]", ""))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree."""
    for name in ("kvemb", "backends", "tools", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run_there(tree: Path, *words: str) -> str:
    """Run Python in a source tree, as if kvemb were not installed: without site, Python reads no .pth file."""
    packages = {**os.environ, "PYTHONPATH": str(Path(numpy.__file__).parents[1])}
    command = [sys.executable, "-S", "-W", "error", *words]
    done = subprocess.run(command, cwd=tree, env=packages, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_source_tree_is_used_as_it_is(tree: Path) -> None:
    told = "import kvemb, kvemb.tools; from kvemb.backends import rocks; print(rocks.__file__, kvemb.tools.__file__)"
    files = ["backends/rocks.py", "tools/__init__.py"]
    assert run_there(tree, "-c", told).split() == [str(tree / file) for file in files]


@pytest.mark.slow
def test_scripts_and_modules_run_in_it_and_the_code_of_the_readme(tree: Path) -> None:
    (tree / "script.py").write_text("from kvemb.tools import main; main()")
    assert run_there(tree, "script.py", "--version") == f"kvemb {kvemb.__version__}"
    assert run_there(tree, "-m", "script", "--version") == f"kvemb {kvemb.__version__}"
    assert run_there(tree, "-m", "kvemb.tools.bench.processes", "json", "dumps", '{"obj": 1}') == '"1"'
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL):
        if "import torch" not in block or is_installed("torch"):
            run_there(tree, "-c", block)


def test_only_kvembs_source_tree_has_parts_beside_the_package(tmp_path: Path) -> None:
    assert installed.source_tree(str(ROOT / "kvemb")) == [str(ROOT)]
    for folder in ("backends", "tools", "kvemb"):
        (tmp_path / folder).mkdir()
    assert installed.source_tree(str(tmp_path / "kvemb")) == []
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "of_somebody"\ndependencies = ["kvemb"]\n')
    assert installed.source_tree(str(tmp_path / "kvemb")) == []
