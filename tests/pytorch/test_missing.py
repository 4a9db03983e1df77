"""Without PyTorch: what kvemb.torch says, and which tests are left out."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_importing_kvemb_does_not_import_torch():
    done = run("import sys, kvemb, kvemb.tools, kvemb.backends; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_where_it_is_missing_the_extra_is_named():
    done = run("import sys; sys.modules['torch'] = None; import kvemb.torch")
    assert "BackendUnavailable: kvemb.torch needs PyTorch; install it: pip install 'kvemb[torch]'" in done.stderr


def test_the_tests_of_its_modules_are_there():
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, so the tests of kvemb.torch were left out; .ci/run runs them")
