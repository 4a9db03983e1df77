"""Without PyTorch: what kvemb.torch says, and which tests are left out."""

from __future__ import annotations

from programs import run_python

from kvemb.installed import pip_install


def test_importing_kvemb_imports_no_machine():
    machines = '"rocksdict", "cupy", "torch", "ml_dtypes", "kvemb.backends", "kvemb.tools"'
    done = run_python(f"import sys, kvemb; print(sorted({{{machines}}} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


def test_where_it_is_missing_the_extra_is_named():
    done = run_python("import sys; sys.modules['torch'] = None; import kvemb.torch")
    assert f"BackendUnavailable: kvemb.torch needs PyTorch; install it: {pip_install('torch')}" in done.stderr
