"""Without PyTorch: what kvemb.torch says, and which tests are left out."""

from __future__ import annotations

import subprocess
import sys

from kvemb.installed import pip_install


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_importing_kvemb_imports_no_machine():
    machines = '"rocksdict", "cupy", "torch", "ml_dtypes", "kvemb.backends", "kvemb.tools"'
    done = run(f"import sys, kvemb; print(sorted({{{machines}}} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


def test_where_it_is_missing_the_extra_is_named():
    done = run("import sys; sys.modules['torch'] = None; import kvemb.torch")
    assert f"BackendUnavailable: kvemb.torch needs PyTorch; install it: {pip_install('torch')}" in done.stderr
