"""Shared memory of two processes: a file in memory without a name, whose descriptor one sends to the other.

So it ends with the last process that has it, however that process ends, and nothing is left in /dev/shm. Its size is
sealed, so a process that maps it gets no SIGBUS from what the other one does. Linux only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from kvemb.cluster.data_plane.encoding import Bytes

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if hasattr(fcntl, "F_SEAL_SEAL") else 0


def has_segments() -> bool:
    """Whether this system has them."""
    return hasattr(os, "memfd_create")


class Segment:
    """A mapped segment. memory: its bytes."""

    def __init__(self, descriptor: int) -> None:
        """Map a segment. Raises ValueError unless its size is sealed. The caller closes the descriptor."""
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("the segment's size is not sealed")
        self._mapped: Any = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.nbytes = len(self._mapped)

    def part(self, nbytes: int) -> Bytes:
        """Return the first bytes, as a new array that alone refers to the memory for those who view it."""
        return np.frombuffer(self._mapped, np.uint8, nbytes)


def created(nbytes: int) -> int:
    """Create a segment; returns its descriptor. Its pages take memory once they are written to."""
    descriptor = os.memfd_create("kvemb", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
