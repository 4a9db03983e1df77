"""Sizes in bytes as people write them, and the values of `kv_creator`: where cold rows live. Frozen values; no I/O."""

from __future__ import annotations

import numbers
import re
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_BUDGET_BYTES
from kvemb.errors import UnsupportedFormat

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MIN_BUDGET_BYTES = 4 << 20


def parse_bytes(size: int | str, what: str = "memory_budget") -> int:
    """Return the bytes of a size: an int, or text such as "512MiB" or "1.5 GB". what: the argument, for messages.

    Raises TypeError; ValueError for text that is no size.
    """
    if isinstance(size, bool) or not isinstance(size, (numbers.Integral, str)):
        raise TypeError(f"{what} must be an int (bytes) or text such as '512MiB', got {brief(size)}")
    if not isinstance(size, str):
        return int(size)
    match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{what} must be text such as '512MiB' or '1.5GB', got {brief(size)}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_budget(size: int | str, what: str = "memory_budget") -> int:
    """Do what parse_bytes does, for memory. Raises ValueError also for less than 4 MiB, or too much."""
    total = parse_bytes(size, what)
    if total < MIN_BUDGET_BYTES:
        got = brief(size)
        if isinstance(size, str) and size.strip().isdecimal():
            got += f", which is in bytes; write '{size.strip()}MiB' for MiB"
        raise ValueError(f"{what} must be at least {format_bytes(MIN_BUDGET_BYTES)}, got {got}")
    if total > MAX_BUDGET_BYTES:
        raise ValueError(f"{what} must be at most {format_bytes(MAX_BUDGET_BYTES)}, got {brief(size)}")
    return total


def parse_device_memory(size: int | str | None) -> int | None:
    """Return the bytes of a device_memory argument, None for None. Raises TypeError, ValueError."""
    return None if size is None else parse_budget(size, "device_memory")


def format_bytes(count: float) -> str:
    """Return a size for people: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_count(count: int, what: str) -> str:
    """Return a count for people: 1, "row" -> '1 row'; 2000, "row" -> '2,000 rows'."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def format_time(seconds: float) -> str:
    """Return seconds since 1970 as local time for people: '2026-01-31 23:59:59'."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


@dataclass(frozen=True)
class MemoryCreator:
    """Keep a variable's cold rows in this process's memory: for tests and small tables.

    The rows are lost at close().
    """

    backend: ClassVar[str] = "memory"


# The useful ranges of what RocksDB accepts.
_LIMITS = {
    "block_bytes": (256, 1 << 28),
    "bloom_bits": (0, 100),
    "write_buffer_bytes": (1 << 16, 1 << 36),
    "background_jobs": (1, 256),
}
_COMPRESSIONS, _MAX_LEVELS = ("none", "lz4", "zstd", "snappy"), 7


@dataclass(frozen=True)
class RocksDBCreator:
    """Keep a variable's cold rows in RocksDB.

    Defaults are tuned by `kvemb bench train`. All variables of a store share its block cache,
    whose size is a share of the store's memory budget.

    read_mode and background_jobs apply to the whole database. If its variables differ, read_mode is "pread", and
    background_jobs is the largest number. In a store that has no rows on disk yet, they apply at once; otherwise from
    the next opening after a flush, and until then a warning is logged for files that stay mapped.

    Args:
        block_bytes: Uncompressed bytes of a data block, 256 to 256 MiB. Smaller blocks need a larger index. Default:
            2048.
        bloom_bits: Bits per key of the Bloom filter for missing keys, at most 100. 0: no filter. Default: 10.
        compression: "none", "lz4", "zstd" or "snappy": one name for all levels, or a tuple of one per level from L0
            down, at most 7. Default: 'none'.
        write_buffer_bytes: Bytes of rows that wait in memory for a file, 64 KiB to 64 GiB. Default: 64 MiB.
        compaction: "universal" merges runs of similar size, so a row is rewritten a few times in its life, and
            checkpoints share the large files. A full merge temporarily takes twice the disk space. "level" takes the
            least disk space, but rewrites rows many times. Default: 'universal'.
        read_mode: "mmap" maps files. Their pages are in the page cache, although the system counts them as this
            process's file-backed memory; a failing disk ends the process. "pread" copies each block; a failing disk
            raises an error. "direct" bypasses the page cache. Default: 'mmap'.
        background_jobs: The number of threads that flush and compact, 1 to 256. Default: 2.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range, or an unknown name.
    """

    backend: ClassVar[str] = "rocks"

    block_bytes: int = 2048
    bloom_bits: int = 10
    compression: str | tuple[str, ...] = "none"
    write_buffer_bytes: int = 64 << 20
    compaction: str = "universal"
    read_mode: str = "mmap"
    background_jobs: int = 2

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = as_int(getattr(self, name), f"RocksDBCreator {name}", least, most)
            object.__setattr__(self, name, value)
        if self.read_mode not in ("pread", "mmap", "direct"):
            raise ValueError(
                f"RocksDBCreator read_mode must be 'pread', 'mmap' or 'direct', got {brief(self.read_mode)}"
            )
        if self.compaction not in ("universal", "level"):
            raise ValueError(f"RocksDBCreator compaction must be 'universal' or 'level', got {brief(self.compaction)}")
        given = self.compression
        names = (given,) if isinstance(given, str) else given if isinstance(given, (tuple, list)) else ()
        if not 0 < len(names) <= _MAX_LEVELS or any(name not in _COMPRESSIONS for name in names):
            raise ValueError(
                f"RocksDBCreator compression must be 'none', 'lz4', 'zstd' or 'snappy', or a tuple of at most "
                f"{_MAX_LEVELS} of them, got {brief(given)}"
            )
        if not isinstance(given, str):
            object.__setattr__(self, "compression", tuple(given))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RocksDBCreator:
        """Return the creator whose dataclasses.asdict() was stored as JSON.

        Args:
            data: The stored fields.

        Returns:
            The creator.

        Raises:
            UnsupportedFormat: A field is unknown, missing or invalid.
        """
        try:
            if "compression" not in data:
                raise ValueError("it lacks compression")
            return cls(**data)
        except (TypeError, ValueError) as error:
            raise UnsupportedFormat(
                f"kv_creator {brief(data)} cannot be read: {error}; use the kvemb that wrote it"
            ) from error


Creator = RocksDBCreator | MemoryCreator
