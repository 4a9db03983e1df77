"""The memory budgets of one store: one for the host, and one for each device."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvemb.contracts import HOST, Memory
from kvemb.memory.budget import Budget
from kvemb.threads.interrupts import uninterrupted


class Budgets:
    """The budgets of one store. memory_budget: bytes of the host's budget.

    The cold store's share of the host's is set aside first: an eighth, at most 128 MiB, for its memtables; and another
    eighth, at most 128 MiB, for more memtables if files are mapped, else half for filters and indexes that are held
    whole and half for the block cache (backends/rocks_options.py). It is known when the database was opened.
    device_memory: bytes of each device's budget; None: as given by contracts.HotTable.memory. check_giving: see Budget.
    """

    def __init__(
        self, memory_budget: int, device_memory: int | None = None, *, check_giving: Callable[[], None] = lambda: None
    ) -> None:
        self._device_memory, self._check_giving = device_memory, check_giving
        self.cache_bytes = memory_budget // 8
        self.write_buffer_bytes = min(128 << 20, memory_budget // 8)
        set_aside = self.cache_bytes + self.write_buffer_bytes
        self.host = Budget(memory_budget, set_aside=set_aside, check_giving=check_giving)
        self._of_device: dict[str, Budget] = {}
        self._lock = threading.Lock()

    @property
    def cold_sizes(self) -> dict[str, int]:
        """The cold store's share, as it is opened with it."""
        return {"cache_bytes": self.cache_bytes, "write_buffer_bytes": self.write_buffer_bytes}

    def opened(self, spare_bytes: int) -> None:
        """Take back what the cold store that was opened does not use; databases opened later get as much as it uses."""
        self.cache_bytes -= spare_bytes
        self.host.add(spare_bytes)

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
