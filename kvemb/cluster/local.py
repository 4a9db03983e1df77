"""Shards in this process, for tests and for trying a program out on one machine. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from kvemb.cluster.shard import Shard

# Calls of several threads overlap; more threads than this only wait for each other.
MOST_THREADS = 16


class LocalTransport:
    """See kvemb.cluster.transport. make: makes the shard with a number.

    If one cannot be made, those before it are closed, and what it raised is raised.
    """

    def __init__(self, make: Callable[[int], Shard], shards: int) -> None:
        self.shards = shards
        self._shards: list[Shard] = []
        try:
            for number in range(shards):
                self._shards.append(make(number))
        except BaseException:
            for shard in self._shards:
                shard.close()
            raise
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, 2 * shards), thread_name_prefix="kvemb-shards")

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """See Transport."""
        future: Future[Any] = self._pool.submit(getattr(self._shards[shard], name), *arguments)
        return future

    def close(self) -> None:
        """See Transport."""
        self._pool.shutdown(wait=True)
        with ExitStack() as last:
            for shard in self._shards:
                last.callback(shard.close)
