"""Sizes in bytes as people write them, and where cold rows live: the `kv_creator` argument. Frozen values; no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from kvemb.errors import UnsupportedFormat

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MIN_BUDGET_BYTES = 4 << 20


def parse_bytes(size: int | str, what: str = "memory_budget") -> int:
    """Return a number of bytes from an int or from text such as "512MiB", "1.5 GB". Raises TypeError or ValueError."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"{what} must be an int (bytes) or text such as '512MiB', got {size!r}")
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{what} must be text such as '512MiB' or '1.5GB', got {size!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_budget(size: int | str) -> int:
    """Return the bytes of a memory_budget argument. Raises TypeError, or ValueError also when they are too few."""
    total = parse_bytes(size)
    if total < MIN_BUDGET_BYTES:
        raise ValueError(f"memory_budget must be at least {format_bytes(MIN_BUDGET_BYTES)}, got {format_bytes(total)}")
    return total


def format_bytes(count: float) -> str:
    """Return a size for people: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@dataclass(frozen=True)
class MemoryCreator:
    """Keep a variable's cold rows in this process's memory: for tests and small tables. They are lost at close()."""

    backend: ClassVar[str] = "memory"


@dataclass(frozen=True)
class RocksDBCreator:
    """Keep a variable's cold rows in RocksDB. Defaults are tuned by `kvemb bench spill` and `kvemb bench train`.

    The block cache is the store's: its size is a share of the store's memory budget, and all variables use it.

    block_bytes: uncompressed bytes of a data block; smaller reads less for one row, and costs index.
    bloom_bits: bits a key of the Bloom filter that answers for missing keys; 0 for none.
    compression: one name for every level, or one a level from L0 down: "none", "lz4", "zstd", "snappy".
    write_buffer_bytes: size of a memtable; two may be in memory.
    compaction: "level", or "universal": fewer rewrites under a constant spill of large batches, but a full merge takes
    twice the disk for a while.
    read_mode: "pread" (through the page cache), "mmap" (faster where the page cache holds the table; its pages count as
    this process's memory), "direct".
    background_jobs: threads that flush and compact.
    """

    backend: ClassVar[str] = "rocks"

    block_bytes: int = 4096
    bloom_bits: int = 10
    compression: str | tuple[str, ...] = "none"
    write_buffer_bytes: int = 64 << 20
    compaction: str = "level"
    read_mode: str = "pread"
    background_jobs: int = 2

    def __post_init__(self) -> None:
        limits = {"block_bytes": 256, "bloom_bits": 0, "write_buffer_bytes": 1 << 16, "background_jobs": 1}
        for name, least in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"RocksDBCreator {name} must be an int, got {value!r}")
            if value < least:
                raise ValueError(f"RocksDBCreator {name} must be at least {least}, got {value}")
        if self.read_mode not in ("pread", "mmap", "direct"):
            raise ValueError(f"RocksDBCreator read_mode must be 'pread', 'mmap' or 'direct', got {self.read_mode!r}")
        if self.compaction not in ("universal", "level"):
            raise ValueError(f"RocksDBCreator compaction must be 'universal' or 'level', got {self.compaction!r}")
        names = (self.compression,) if isinstance(self.compression, str) else tuple(self.compression)
        if not names or any(name not in ("none", "lz4", "zstd", "snappy") for name in names):
            raise ValueError(
                f"RocksDBCreator compression must be 'none', 'lz4', 'zstd' or 'snappy', got {self.compression!r}"
            )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RocksDBCreator:
        """Return the creator that dataclasses.asdict gave, read back from JSON. Raises UnsupportedFormat."""
        try:
            compression = data["compression"]
            return cls(**{**data, "compression": compression if isinstance(compression, str) else tuple(compression)})
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedFormat(
                f"kv_creator {data!r} cannot be read: {error!r}; use the kvemb that wrote it"
            ) from error


Creator = RocksDBCreator | MemoryCreator
