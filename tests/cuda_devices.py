"""The devices of this machine for tests of the GPU's hot table: the CPU if g++ is installed, and a GPU."""

from __future__ import annotations

import importlib.util

import pytest
from cuda_on_cpu import CpuDevice, CudaOnCpuTable, require_compiler

from kvemb import registry
from kvemb.backends.cuda.cupy_device import open_device
from kvemb.backends.cuda.device import Device
from kvemb.backends.cuda.table import CudaTable
from kvemb.errors import BackendUnavailable
from kvemb.rows.schema import Schema

DEVICES = ["cpu", *(["gpu:0"] if importlib.util.find_spec("cupy") else [])]


def device_of(name: str, seed: int = 1) -> Device:
    """Return a device; the test is skipped if there is none. seed: of the order in which threads run on a CPU."""
    try:
        if name != "cpu":
            return open_device(name)
        require_compiler()
        return CpuDevice(seed)
    except BackendUnavailable as error:
        pytest.skip(str(error))


def use_for_gpus(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """Put a device in the place of every GPU; its hot tables are those of a GPU."""
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:CudaOnCpuTable")
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: device))


def table_on(device: Device, schema: Schema, first: int, most: int) -> CudaTable:
    """Return a hot table on a device, of `first` cells and at most `most`."""
    kind = type("Table", (CudaTable,), {"open_device": staticmethod(lambda name: device)})
    table: CudaTable = kind(schema, first, most)
    return table
