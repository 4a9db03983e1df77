"""Without PyTorch: what kvemb.torch says, and which tests are left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvemb.installed import pip_install


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_importing_kvemb_does_not_import_torch():
    done = run("import sys, kvemb, kvemb.tools, kvemb.backends; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_where_it_is_missing_the_extra_is_named():
    done = run("import sys; sys.modules['torch'] = None; import kvemb.torch")
    assert f"BackendUnavailable: kvemb.torch needs PyTorch; install it: {pip_install('torch')}" in done.stderr
