"""The interfaces of hot tables and cold stores. Backends implement them; policies and tiers use nothing else.

Keys are int64 (n,) everywhere (rows.host_arrays.as_keys).
"""

from kvemb.contracts.cold import ColdDatabase, ColdStore, Family, Gap, Mask, SortedFile
from kvemb.contracts.device import DeviceCounts, DeviceRows, MissingKeys
from kvemb.contracts.hot import HOST, Flags, HotTable, Memory, PlannedChange, RowKernels, Values

__all__ = [
    "HOST",
    "ColdDatabase",
    "ColdStore",
    "DeviceCounts",
    "DeviceRows",
    "Family",
    "Flags",
    "Gap",
    "HotTable",
    "Mask",
    "Memory",
    "MissingKeys",
    "PlannedChange",
    "RowKernels",
    "SortedFile",
    "Values",
]
