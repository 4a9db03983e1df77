"""A client's calls of shards: sent to all of them at once, numbered, and repeated where no answer came. Thread-safe."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

from kvemb.cluster.ledger import Stamp
from kvemb.cluster.transport import Transport, Unanswered
from kvemb.errors import ShardLost
from kvemb.interrupts import result_of, uninterrupted

# How often a call is sent before its shard counts as lost.
MOST_ATTEMPTS = 5


class Calls:
    """The calls of one client.

    lost: the error of the first lost shard, None if there is none; once set, every call raises ShardLost.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.lost: ShardLost | None = None
        self._client = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._next, self._open = 0, set[int]()

    @contextmanager
    def stamped(self) -> Iterator[Stamp]:
        """Number a call. In the block the caller sends it and waits for all answers."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._open.add(number)
            stamp = Stamp(self._client, number, min(self._open))
        try:
            yield stamp
        finally:
            with uninterrupted(), self._lock:
                self._open.discard(number)

    def all(self, name: str, *arguments: Any) -> list[Any]:
        """Make the same call on every shard; returns their results in order. Raises as each() does."""
        return list(self.each(name, dict.fromkeys(range(self.transport.shards), arguments)).values())

    def all_once(self, name: str, *arguments: Any) -> list[Any]:
        """The same for a call that a shard must not make twice; its first argument is a Stamp."""
        with self.stamped() as stamp:
            return self.all(name, stamp, *arguments)

    def each(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Make a call on some shards at once, by number; returns their results once all have answered.

        A call without an answer is sent again unchanged, so it must carry a Stamp or only read. When all have ended,
        raises what the first failing shard raised, or ShardLost.
        """
        if self.lost is not None:
            raise ShardLost(str(self.lost)) from self.lost
        futures = {shard: self.transport.call(shard, name, *given) for shard, given in arguments.items()}
        results: dict[int, Any] = {}
        failure: Exception | None = None
        try:
            for shard, future in futures.items():
                try:
                    results[shard] = self._answer(shard, future, name, arguments[shard])
                except Exception as error:
                    failure = failure or error
        except BaseException:
            wait(futures.values())  # Ctrl-C: nothing may be under way when the call has ended
            raise
        if failure is not None:
            raise failure
        return results

    def _answer(self, shard: int, future: Future[Any], name: str, arguments: tuple[Any, ...]) -> Any:
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                return result_of(future)
            except Unanswered as error:
                if attempt == MOST_ATTEMPTS:
                    lost = f"shard {shard} did not answer a call of {name}, sent {attempt} times: {error}"
                    self.lost = ShardLost(
                        f"{lost}; close the cluster and open it again: it begins with its last checkpoint"
                    )
                    raise self.lost from error
                future = self.transport.call(shard, name, *arguments)
        raise AssertionError("the last attempt returns or raises")
