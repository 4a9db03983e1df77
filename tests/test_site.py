"""The site builds without a warning: no dead link, no page outside the tables of contents, no name that is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.needs("sphinx", "furo", "myst_parser")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file()
