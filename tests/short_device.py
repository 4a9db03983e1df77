"""A GPU on the CPU (cuda_on_cpu.py) that runs out of memory when a test says so."""

from __future__ import annotations

import weakref

from cuda_on_cpu import CpuDevice

from kvemb.backends.cuda.device import Memory


class ShortDevice(CpuDevice):
    """A device with limited memory for a while. refused: the number of allocations refused since then.

    taken: bytes in use; most: the limit. failing: the number of the call, from 0, that is refused whatever its size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken, self.refused, self.calls = 0, 0, 0
        self.suffice()

    def allocate(self, nbytes: int) -> Memory:
        self.calls += 1
        if self.taken + nbytes > self.most or self.calls - 1 == self.failing:
            self.refused += 1
            raise MemoryError(f"gpu:0 has no {nbytes} B left")
        memory = super().allocate(nbytes)
        self.taken += nbytes
        weakref.finalize(memory.owner, self._free, nbytes)
        return memory

    def _free(self, nbytes: int) -> None:
        self.taken -= nbytes

    def fail(self, call: int) -> None:
        """Refuse one future call."""
        self.failing, self.refused, self.calls = call, 0, 0

    def give(self, nbytes: int) -> None:
        """Limit the memory to so many bytes from now on."""
        self.most, self.refused = self.taken + nbytes, 0

    def suffice(self) -> None:
        """Remove the limit."""
        self.most, self.failing = 1 << 40, -1
