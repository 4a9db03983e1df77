"""How much hot tables, spill piles and caches may take of each memory: a budget for the host, and one for each device.

Thread-safe.
"""

from __future__ import annotations

import threading

from kvemb.contracts import HOST, Memory
from kvemb.options import format_bytes


class Budget:
    """`total` bytes of one memory, handed out in reservations.

    set_aside: of these, bytes that others have from the start. whose, advice: for messages.
    """

    def __init__(
        self,
        total: int,
        *,
        set_aside: int = 0,
        whose: str = "the store's",
        advice: str = "open the store with a larger memory_budget or ask for less",
    ) -> None:
        self.total = total
        self._whose, self._advice = whose, advice
        self._free = total - set_aside
        self._lock = threading.Lock()

    @property
    def kept_from_growth(self) -> int:
        """Bytes that growing tables leave free for later variables."""
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
        """Take nbytes for growth, if that leaves kept_from_growth free."""
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
                f"{what} needs {format_bytes(nbytes)}, but {format_bytes(self._free)} of {self._whose} budget of "
                f"{format_bytes(self.total)} are free; {self._advice}"
            )


class Budgets:
    """The budgets of one store. memory_budget: bytes of the host's.

    The cold store's share of the host's is set aside first: an eighth for filters and indexes, whole ones and its block
    cache, which does not hold data that is read once; and an eighth, at most 128 MiB, for its memtables.
    A device's budget is as large as its tables say (contracts.HotTable.memory).
    """

    def __init__(self, memory_budget: int) -> None:
        self.cache_bytes = memory_budget // 8
        self.write_buffer_bytes = min(128 << 20, memory_budget // 8)
        self.host = Budget(memory_budget, set_aside=self.cache_bytes + self.write_buffer_bytes)
        self._of_device: dict[str, Budget] = {}
        self._lock = threading.Lock()

    def of(self, memory: Memory) -> Budget:
        """Return the budget of a memory: the same one each time."""
        if memory == HOST:
            return self.host
        with self._lock:
            if memory.name not in self._of_device:
                advice = "ask for less, or for rows on another device too"
                self._of_device[memory.name] = Budget(memory.nbytes, whose=f"{memory.name}'s", advice=advice)
            return self._of_device[memory.name]
