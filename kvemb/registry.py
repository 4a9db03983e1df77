"""Backends by name, loaded on first use, so that the core imports no backend's package."""

from __future__ import annotations

import importlib
from typing import Any

from kvemb.contracts import HotTable, RowKernels
from kvemb.errors import BackendUnavailable

# The class of hot tables of each kind of device. Another one may be added.
hot_backends = {"cpu": "kvemb.backends.cpu:CpuTable"}
_ROWS = "kvemb.backends.cpu_rows:CpuRows"
_COLD = {"rocks": "kvemb.backends.rocks:RocksDatabase", "memory": "kvemb.backends.memory:MemoryStore"}


def hot_table(device: str) -> type[HotTable]:
    """Return the HotTable class for a device as parse_device spells it: "cpu", "gpu:0"."""
    kind = device.partition(":")[0]
    if kind not in hot_backends:
        raise BackendUnavailable(
            f"device {device!r} is not available: hot tables are on the CPU only in this version of kvemb; "
            "use devices=None"
        )
    table: type[HotTable] = _load(hot_backends[kind])
    return table


def row_kernels() -> RowKernels:
    """Return the operations on rows in host memory."""
    kernels: RowKernels = _load(_ROWS)()
    return kernels


def cold_backend(name: str) -> Any:
    """Return the class of a cold backend: RocksDatabase for "rocks", MemoryStore for "memory"."""
    return _load(_COLD[name])


def parse_device(spec: object) -> str:
    """Return "cpu" or "gpu:N" for the spellings of kvemb, TensorFlow and PyTorch: "cpu", "gpu:0", "/CPU:0",
    "/device:GPU:1", "cuda:0".
    """
    if not isinstance(spec, str):
        raise TypeError(f"a device must be text such as 'cpu', got {spec!r}")
    kind, _, number = spec.lower().removeprefix("/").removeprefix("device:").partition(":")
    if kind not in ("cpu", "gpu", "cuda") or not (number.isdigit() or (number == "" and ":" not in spec)):
        raise ValueError(
            f"a device must be 'cpu', 'cpu:N' or TensorFlow's '/CPU:N', got {spec!r}; "
            "hot tables are on the CPU only in this version of kvemb"
        )
    return "cpu" if kind == "cpu" else f"gpu:{int(number or 0)}"


def _load(place: str) -> Any:
    module, name = place.split(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise BackendUnavailable(f"{place} cannot be loaded: {error}; reinstall it with: pip install kvemb") from error
