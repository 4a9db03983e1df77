"""Faults planted into the GPU's kernels are found: a test of the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_devices import device_of
from cuda_faults import FAULTS


@pytest.mark.slow
def test_planted_faults_are_found():
    device_of("cpu")
    script = Path(__file__).parents[2] / "cuda_faults.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert list(outcomes) == list(FAULTS)
    assert {fault: outcome for fault, outcome in outcomes.items() if outcome not in ("found", "crashed")} == {}
