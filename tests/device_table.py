"""The CPU's hot table as one of a device: its cells are paid for by that device's memory, not by the host's."""

from __future__ import annotations

from typing import Any

from kvemb.backends.cpu import CpuTable
from kvemb.contracts import Memory
from kvemb.rows.schema import Schema

DEVICE_BYTES = 1 << 20


class DeviceTable(CpuTable):
    """A table on a device of DEVICE_BYTES."""

    @staticmethod
    def memory(device: str) -> Memory:
        return Memory(device, DEVICE_BYTES)


class SmallTable(DeviceTable):
    """A table of 16 rows, whatever size is requested."""

    def __init__(self, schema: Schema, _first: int, _most: int, *rest: Any) -> None:
        super().__init__(schema, 16, 16, *rest)
