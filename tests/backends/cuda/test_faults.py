"""Faults planted into the GPU's kernels are found: a test of the tests. tests/cuda_faults.py plants all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_devices import device_of
from cuda_faults import FAULTS

from kvemb.backends import cuda
from kvemb.backends.cuda.formulas import source_of
from kvemb.optimizers import Adam


def test_every_fault_can_be_planted():
    kernels = [path.read_text(encoding="utf-8") for path in Path(cuda.__file__).parent.glob("*.cu")]
    kernels.append(source_of(Adam().formulas, tuple(slot.name for slot in Adam().slots)))
    assert [fault for fault, (right, _) in FAULTS.items() if not any(right in kernel for kernel in kernels)] == []


@pytest.mark.slow
def test_planted_faults_are_found():
    device_of("cpu")
    script, some = Path(__file__).parents[2] / "cuda_faults.py", list(FAULTS)[::5]
    done = subprocess.run([sys.executable, str(script), *some], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert list(outcomes) == some
    assert {fault: outcome for fault, outcome in outcomes.items() if outcome not in ("found", "crashed")} == {}
