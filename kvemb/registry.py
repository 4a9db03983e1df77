"""Backends by name, loaded on first use, so that the core imports no backend's package."""

from __future__ import annotations

import importlib
from typing import Any

from kvemb.contracts import HotTable, RowKernels
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install
from kvemb.limits import DEFAULT, Limits
from kvemb.threads.interrupts import uninterrupted

# The class of hot tables for each kind of device. Others may be added.
hot_backends = {"cpu": "kvemb.backends.cpu:CpuTable", "gpu": "kvemb.backends.cuda.table:CudaTable"}
_ROWS = "kvemb.backends.cpu_rows:CpuRows"
_OF_CLUSTER = {
    "source": "kvemb.cluster.durability.restoring:ClusterRemote",
    "verify": "kvemb.cluster.durability.offline:verify",
}
_COLD = {"rocks": "kvemb.backends.rocks:RocksDatabase", "memory": "kvemb.backends.memory_store:MemoryStore"}


def hot_table(device: str) -> type[HotTable]:
    """Return the HotTable class for a device as parse_device spells it: "cpu", "gpu:0".

    Whether this machine has the device is checked by the class's memory().
    """
    table: type[HotTable] = _load(hot_backends[device.partition(":")[0]])
    return table


def row_kernels(limits: Limits = DEFAULT) -> RowKernels:
    """Return the operations on rows in host memory. limits: those of the store of the rows."""
    kernels: RowKernels = _load(_ROWS)(limits)
    return kernels


def cold_backend(name: str) -> Any:
    """Return the class of a cold backend: RocksDatabase for "rocks", MemoryStore for "memory"."""
    return _load(_COLD[name])


def of_cluster(name: str) -> Any:
    """Return what reads a cluster's checkpoints: "source", the remote to pull from, or "verify", a function."""
    return _load(_OF_CLUSTER[name])


def parse_device(spec: object) -> str:
    """Return "cpu" or "gpu:N" for the spellings of kvemb, TensorFlow and PyTorch: "cpu", "gpu:0", "/CPU:0",
    "/device:GPU:1", "cuda:0".
    """
    if not isinstance(spec, str):
        raise TypeError(f"a device must be text such as 'cpu', got {spec!r}")
    kind, _, number = spec.lower().removeprefix("/").removeprefix("device:").partition(":")
    if kind not in ("cpu", "gpu", "cuda") or not (number.isdigit() or (number == "" and ":" not in spec)):
        elsewhere = any(part in spec.lower() for part in ("job:", "replica:", "task:"))
        advice = "; kvemb.cluster places rows on several machines" if elsewhere else ""
        raise ValueError(f"a device must be 'cpu', 'gpu:N' or TensorFlow's '/GPU:N', got {spec!r}{advice}")
    return "cpu" if kind == "cpu" else f"gpu:{int(number or 0)}"


def _load(place: str) -> Any:
    module, name = place.split(":")
    try:
        # Signal handlers wait while a backend and numba are imported: numba's finalizers would swallow it.
        with uninterrupted():
            return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise BackendUnavailable(f"{place} cannot be loaded: {error}; install it again: {pip_install()}") from error
