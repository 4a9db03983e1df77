"""What tiering asks of a hot table and of a cold store. Backends implement these; policies and tiers know nothing else.

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
