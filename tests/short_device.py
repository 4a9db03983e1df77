"""A GPU on the CPU (cuda_on_cpu.py) that is short of memory when a test says so."""

from __future__ import annotations

import weakref

from cuda_on_cpu import CpuDevice

from kvemb.backends.cuda.device import Memory


class ShortDevice(CpuDevice):
    """A device whose memory is short for a while. refused: how often it was asked in vain since then.

    taken: bytes; most: how many there are. failing: the number of the call, from 0, that is refused whatever it asks.
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
        """Refuse one call from now."""
        self.failing, self.refused, self.calls = call, 0, 0

    def give(self, nbytes: int) -> None:
        """Have no more than so many bytes from now on."""
        self.most, self.refused = self.taken + nbytes, 0

    def suffice(self) -> None:
        """Have enough."""
        self.most, self.failing = 1 << 40, -1
