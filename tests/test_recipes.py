"""The code of the pages in docs/ runs as it stands, and learns; a page is skipped where its framework is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / page for page in ("guides/clusters.md", "recipes/dlrm.md", "recipes/jax.md", "recipes/two_towers.md")]
PAGES += [DOCS / "start/keras.md"]
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}


def code_of(page: Path) -> str:
    """The page's code, its blocks one after the other. Skips where what it imports is missing."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks, f"{page.name} has no code"
    code = "\n".join(blocks)
    for module, name in FRAMEWORKS.items():
        if f"\nimport {module}\n" in f"\n{code}":
            pytest.importorskip(module, reason=f"{name} is not installed, and docs/{page.name} trains with it")
    return str(code)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_and_learns(page: Path, tmp_path: Path) -> None:
    """In a process of its own: a framework stays where it was imported, and JAX warns of every fork after that."""
    code = f"{code_of(page)}\nimport json\nprint(json.dumps([float(loss) for loss in losses]))\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout.splitlines()[-1])
    third = len(losses) // 3
    assert sum(losses[-third:]) < 0.95 * sum(losses[:third])


@pytest.mark.slow
def test_a_dlrm_that_is_resumed_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = next(page for page in PAGES if page.stem == "dlrm")
    code = code_of(page)
    ends = []
    for name, cut in (("whole", None), ("cut", 40)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        if cut is not None:  # it ends at step 40, ten steps after its last checkpoint, and is run again
            exec(compile(code.replace("STEPS = 26, 8, 4, 60", f"STEPS = 26, 8, 4, {cut}"), "dlrm.md", "exec"), {})
        steps = 60 if cut is None else 30
        made: dict[str, Any] = {}
        exec(compile(code.replace("STEPS = 26, 8, 4, 60", f"STEPS = 26, 8, 4, {steps}"), "dlrm.md", "exec"), made)
        assert made["step"] == 59
        ends.append(made["losses"][-30:])
    assert ends[0] == ends[1]
