"""The Python code of every page of the site runs as it stands, the blocks of a page one after the other.

A page's code runs in a process and a directory of its own. What it prints is compared with nothing, so a page asserts
what it promises. A page is skipped where a package that it imports is not installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
# tests/tools/report/test_page.py runs the code of this page in the place that its commands have made.
ELSEWHERE = [DOCS / "guides" / "offline.md"]
FRAMEWORKS = ("torch", "torchrec", "jax", "tensorflow", "keras", "faiss", "duckdb", "pandas", "ray", "tensorboard")
FRAMEWORKS += ("prometheus_client",)


def code_of(page: Path) -> str:
    """The page's code, its blocks one after the other."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))


CODE = {page: code for page in sorted(DOCS.rglob("*.md")) if page not in ELSEWHERE and (code := code_of(page))}


def needed(code: str) -> list[pytest.MarkDecorator]:
    """The marks of a page: slow, and a framework that it imports."""
    there = [name for name in FRAMEWORKS if re.search(rf"^(import|from) {name}\b", code, re.MULTILINE)]
    return [pytest.mark.slow, *([pytest.mark.needs(*there)] if there else [])]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=needed(code), id=str(page.relative_to(DOCS))) for page, code in CODE.items()],
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", CODE[page]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # PyTorch's threads wait busily, on cores that others need
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
