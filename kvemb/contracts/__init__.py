"""The interfaces of hot tables and cold stores. Backends implement them; policies and tiers use nothing else.

Keys are int64 (n,) everywhere (rows.host_arrays.as_keys).
"""

from kvemb.contracts.cold import ColdDatabase, ColdStore, Family, Gap, Mask, Recorder, SortedFile, WriteLog
from kvemb.contracts.device import DeviceRows, Missing
from kvemb.contracts.hot import HOST, Change, HotTable, Memory, RowKernels, Values

__all__ = [
    "HOST",
    "Change",
    "ColdDatabase",
    "ColdStore",
    "DeviceRows",
    "Family",
    "Gap",
    "HotTable",
    "Mask",
    "Memory",
    "Missing",
    "Recorder",
    "RowKernels",
    "SortedFile",
    "Values",
    "WriteLog",
]
