"""How many threads share the cold reads of a call: one for each core, or more while reads wait for the disk.

Reads of rows in the page cache need a core, and each more thread costs switches and hand-overs of the GIL. The system
counts how often the process waited for a disk. Reads of others in the process count, too; then there may be more
threads than needed. Thread-safe.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvemb.threads.parallel import MAX_THREADS, cores

# If there was a wait for so many keys, threads waited as long as they worked: an SSD answers in some 100 us, and a key
# in the page cache takes 2 us.
KEYS_PER_WAIT = 64


def disk_waits() -> int:
    """Return how often this process has waited for a disk: major page faults and blocks that were read."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt + used.ru_inblock


class ReadThreads:
    """How many threads share cold reads, learned from the last ones. waits: returns a count of waits that only grows.

    threads: MAX_THREADS before the first reads, and if the last ones waited for the disk; else the number of cores.
    """

    def __init__(self, waits: Callable[[], int] = disk_waits) -> None:
        self.threads = MAX_THREADS
        self._waits = waits

    @contextmanager
    def reading(self, keys: int) -> Iterator[int]:
        """Yield how many threads may read during the block, which reads `keys` keys, at least one."""
        before = self._waits()
        yield self.threads
        waited = (self._waits() - before) * KEYS_PER_WAIT >= keys
        self.threads = MAX_THREADS if waited else min(cores(), MAX_THREADS)
