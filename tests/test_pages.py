"""The Python code of every page of the site runs as it stands, the blocks of a page one after the other.

All pages that need no other package run in one process, and those that do in another, each in a directory and a
namespace of its own. What it prints is compared with nothing, so a page asserts what it promises.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
# tests/tools/report/test_page.py runs the code of this page in the place that its commands have made.
ELSEWHERE = [DOCS / "guides" / "offline.md"]
# Runs the code of several pages. The traceback of an error names the page.
PROGRAM = """
import json, os, sys

for number, (page, code) in enumerate(json.loads(sys.argv[1]).items()):
    os.mkdir(str(number))
    os.chdir(str(number))
    exec(compile(code, page, "exec"), {"__name__": "__main__"})
    os.chdir("..")
"""
FRAMEWORKS = ("torch", "torchrec", "jax", "tensorflow", "keras", "faiss", "duckdb", "pandas", "ray", "tensorboard")
FRAMEWORKS += ("prometheus_client",)
# Keras' variables do not know an argument of NumPy 2's protocol.
KNOWN = ["-W", "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"]


def code_of(page: Path) -> str:
    """The page's code, its blocks one after the other."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))


CODE = {page: code for page in sorted(DOCS.rglob("*.md")) if page not in ELSEWHERE and (code := code_of(page))}


def frameworks_of(code: str) -> tuple[str, ...]:
    """The frameworks that a page imports."""
    return tuple(name for name in FRAMEWORKS if re.search(rf"^(import|from) {name}\b", code, re.MULTILINE))


NEEDED = sorted({name for code in CODE.values() for name in frameworks_of(code)})


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.needs(*NEEDED))])
def test_the_code_of_pages_runs(alone: bool, tmp_path: Path) -> None:
    codes = {str(page): code for page, code in CODE.items() if alone != bool(frameworks_of(code))}
    command = [sys.executable, "-W", "error", *KNOWN, "-c", PROGRAM, json.dumps(codes)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
