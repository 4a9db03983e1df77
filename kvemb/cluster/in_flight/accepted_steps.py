"""The steps that a shard has accepted and not taken yet, and the errors of those that failed. Thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from kvemb.cluster.ledger import Stamp
from kvemb.cluster.transport import ShardFailed

# Errors that are kept for clients that have not asked yet, the latest ones.
MAX_KEPT = 1024


class Accepted(NamedTuple):
    """A call's result, and the rest of the call, which its transport runs once the result was sent or cannot be sent.

    The arrays of the call must not change until then.
    """

    result: Any
    rest: Callable[[], None]


class FailedStep(NamedTuple):
    """A variable's step that failed on a shard. number: of the client's call. variable: its token."""

    number: int
    variable: str
    error: Exception


class StepsInFlight:
    """Those of one shard."""

    def __init__(self) -> None:
        self._running = set[Future[None]]()
        self._failed: deque[tuple[str, FailedStep]] = deque(maxlen=MAX_KEPT)  # with the client
        self._broken: Exception | None = None

    def begin(self, stamp: Stamp, take: Callable[[], dict[str, Exception]]) -> Callable[[], None]:
        """Accept a step; returns what takes it. take(): returns errors by the variable's token; if it raises one, the
        shard has failed.
        """
        done: Future[None] = Future()
        self._running.add(done)

        def rest() -> None:
            try:
                errors = take()
                self._failed += [(stamp.client, FailedStep(stamp.number, *each)) for each in errors.items()]
            except Exception as error:
                self._broken = error
            finally:
                self._running.discard(done)
                done.set_result(None)

        return rest

    def settle(self) -> None:
        """Wait for the steps that are in flight now. Raises ShardFailed if the shard failed in one."""
        if self._running:
            wait(list(self._running))
        if self._broken is not None:
            raise ShardFailed(f"its store failed: {self._broken}") from self._broken

    def failed(self, client: str) -> list[FailedStep]:
        """Return the failed steps of a client that it has not forgotten."""
        return [failed for of, failed in list(self._failed) if of == client]

    def forget(self, client: str, numbers: Collection[int]) -> None:
        """Forget failed steps of a client, by the numbers of its calls."""
        for each in list(self._failed):
            if each[0] == client and each[1].number in numbers:
                self._failed.remove(each)
