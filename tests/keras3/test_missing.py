"""Without Keras: what kvemb.keras says."""

from __future__ import annotations

import subprocess
import sys

from kvemb.installed import pip_install


def test_where_it_is_missing_the_extra_is_named():
    code = "import sys; sys.modules['keras'] = None; import kvemb.keras"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert f"BackendUnavailable: kvemb.keras needs keras; install it: {pip_install('keras')}" in done.stderr
