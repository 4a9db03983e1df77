"""The memory budgets of one store: one for the host, and one for each device."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvemb.contracts import HOST, Memory
from kvemb.memory.budget import Budget
from kvemb.memory.staging import Staging
from kvemb.threads.interrupts import uninterrupted


class Budgets:
    """The budgets of one store. memory_budget: bytes of the host's budget.

    Staging is taken first, and for files that are not mapped an eighth for RocksDB's filters, indexes and block
    cache (backends/rocks_options.py); the rest of the host's is for cells. device_memory: bytes of each device's
    budget; None: as given by contracts.HotTable.memory. check_giving: see Budget. cached_bytes: what RocksDB may cache.
    """

    def __init__(
        self, memory_budget: int, device_memory: int | None = None, *, check_giving: Callable[[], None] = lambda: None
    ) -> None:
        self._device_memory, self._check_giving = device_memory, check_giving
        self.cache_bytes, self.cached_bytes = memory_budget // 8, 0
        self.host = Budget(memory_budget, check_giving=check_giving)
        self.staging = Staging(memory_budget, self.host.try_take)
        self.host.take(self.staging.total)
        self._of_device: dict[str, Budget] = {}
        self._lock = threading.Lock()

    def opened(self, *, cached: bool) -> None:
        """Pay for a cold store that was opened. cached: whether it caches what it reads."""
        before, self.cached_bytes = self.cached_bytes, cached * self.cache_bytes
        self.host.take(self.cached_bytes - before)

    def for_cells(self, memory: Memory) -> int:
        """Return the bytes of a memory's budget that cells may take, if nothing else needs them."""
        return self.host.total - self.staging.total - self.cached_bytes if memory == HOST else self.of(memory).total

    def of(self, memory: Memory) -> Budget:
        """Return the budget of a memory, always the same object."""
        if memory == HOST:
            return self.host
        with uninterrupted(), self._lock:
            if memory.name not in self._of_device:
                advice = "ask for fewer rows, or spread them over more devices"
                total = memory.nbytes if self._device_memory is None else self._device_memory
                whose, check = f"{memory.name}'s", self._check_giving
                self._of_device[memory.name] = Budget(total, whose=whose, advice=advice, check_giving=check)
            return self._of_device[memory.name]
