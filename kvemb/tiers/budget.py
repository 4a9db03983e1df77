"""One budget of bytes for a store: what hot tables, spill buffers and the cold store's caches may take together.

Thread-safe.
"""

from __future__ import annotations

import threading

from kvemb.options import format_bytes


class Budget:
    """`total` bytes, handed out in reservations.

    The cold store's share is set aside first: a sixteenth for its block cache, which need hold little more than index
    and filter blocks, as data that is read once is not read again soon; and an eighth, at most 128 MiB, for its
    memtables.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.cache_bytes = total // 16
        self.write_buffer_bytes = min(128 << 20, total // 8)
        self._free = total - self.cache_bytes - self.write_buffer_bytes
        self._lock = threading.Lock()

    @property
    def kept_from_growth(self) -> int:
        """Bytes that growing tables leave, for variables to come."""
        return self.total // 16

    @property
    def free(self) -> int:
        """Bytes nobody has reserved."""
        return self._free

    def try_reserve(self, nbytes: int) -> bool:
        """Take nbytes if they are free."""
        with self._lock:
            if nbytes > self._free:
                return False
            self._free -= nbytes
            return True

    def try_grow(self, nbytes: int) -> bool:
        """Take nbytes for something that can do without, if that leaves kept_from_growth."""
        with self._lock:
            if nbytes > self._free - self.kept_from_growth:
                return False
            self._free -= nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Free what was reserved."""
        with self._lock:
            self._free += nbytes

    def reserve(self, nbytes: int, what: str) -> None:
        """Take nbytes, or raise ValueError saying for what."""
        if not self.try_reserve(nbytes):
            raise ValueError(
                f"{what} needs {format_bytes(nbytes)}, but {format_bytes(self._free)} of the store's budget of "
                f"{format_bytes(self.total)} are free; open the store with a larger memory_budget or ask for less"
            )
