"""The devices that this machine has for tests of the GPU's hot table: its CPU if g++ is there, and a GPU."""

from __future__ import annotations

import importlib.util

import pytest
from cuda_on_cpu import CpuDevice, require_compiler

from kvemb.backends.cuda.device import Device, open_device
from kvemb.errors import BackendUnavailable

DEVICES = ["cpu", *(["gpu:0"] if importlib.util.find_spec("cupy") else [])]


def device_of(name: str, seed: int = 1) -> Device:
    """A device; the test is skipped if it is not there. seed: of the order in which threads run on a CPU."""
    try:
        if name != "cpu":
            return open_device(name)
        require_compiler()
        return CpuDevice(seed)
    except BackendUnavailable as error:
        pytest.skip(str(error))
