"""A client's calls of shards: sent to all of them at once, numbered, and repeated where no answer came. Thread-safe."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

from kvemb.cluster.ledger import Stamp
from kvemb.cluster.transport import Failed, GateClosed, Transport, Unanswered
from kvemb.errors import ShardLost
from kvemb.interrupts import result_of, uninterrupted

# How often a call is sent before its shard counts as lost.
MAX_ATTEMPTS = 5
# Between two questions whether a call that is held back may be sent: doubled each time.
MIN_PAUSE, MAX_PAUSE = 0.001, 0.05

ADVICE = "recover() takes the whole cluster back to its last checkpoint; so does closing it and opening it again"


# Calls whose time does not grow with the table; one that takes very long will never end.
_ON_ROWS = ["lookup", "change", "slot", "scores", "prefetch", "size", "stats", "entry", "next_batch", "end_scan"]
LIMITED = frozenset([*_ON_ROWS, "hold", "admit", "admits", "release"])


class Patience(NamedTuple):
    """Seconds. silent: after which a shard that has not answered is sent a ping. ping: until it must answer that.

    most: until it must answer one of LIMITED, even if it answers pings.
    """

    silent: float = 30.0
    ping: float = 30.0
    most: float = math.inf

    @classmethod
    def within(cls, seconds: float) -> Patience:
        """Return that of calls which may take so many seconds."""
        return cls(min(30.0, seconds / 2), min(30.0, seconds / 2), seconds)


PATIENCE = Patience()


class Calls:
    """The calls of one client. who: what messages call the shard with a number. advice(): ends messages of a loss.

    patience: with a shard that does not answer.

    client: its identity. lost: the error of the first lost shard, None if there is none; once set, every call raises
    ShardLost. on_loss(error), if set, is called when a call finds a loss; on_wait(), while a call is held back.
    """

    def __init__(
        self,
        transport: Transport,
        who: Callable[[int], str] = "shard {}".format,
        advice: Callable[[], str] = lambda: ADVICE,
        patience: Patience = PATIENCE,
    ) -> None:
        self.transport, self.client = transport, uuid.uuid4().hex
        self.lost: ShardLost | None = None
        self.on_loss: Callable[[ShardLost], None] | None = None
        self.on_wait: Callable[[], None] | None = None
        self.patience, self._who, self._advice = patience, who, advice
        self._lock = threading.Lock()
        self._next, self._open = 0, set[int]()

    @contextmanager
    def stamped(self, shards: Iterable[int]) -> Iterator[Stamp]:
        """Number a call of some shards. In the block the caller sends it and waits for all answers."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._open.add(number)
            stamp = Stamp(self.client, number, min(self._open), sum(1 << shard for shard in shards))
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
        with self.stamped(range(self.transport.shards)) as stamp:
            return self.all(name, stamp, *arguments)

    def each(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Make a call on some shards at once, by number; returns their results once all have answered.

        A call without an answer is sent again unchanged, so it must carry a Stamp as its first argument, or only read.
        When all have ended, raises what the first failing shard raised, or ShardLost. Ctrl-C is raised then, too: a
        call that was sent to some shards is a whole one only when all have made it.
        """
        self.check()
        sent = _Sent(self, name, arguments)
        try:
            with uninterrupted():
                sent.send()
            sent.finish()
        except BaseException:  # Ctrl-C
            with uninterrupted():
                sent.finish()
            raise
        if sent.failure is not None:
            raise sent.failure
        return {shard: sent.results[shard] for shard in arguments}

    def check(self) -> None:
        """Raise ShardLost once a shard is lost."""
        if self.lost is not None:
            raise ShardLost(str(self.lost)) from self.lost

    def lose(self, error: ShardLost) -> None:
        """Let every later call raise ShardLost. The first reason is kept."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = error
        if self.on_loss is not None:
            self.on_loss(error)

    def answer(self, shard: int, future: Future[Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Wait for an answer; sends the call again where none came, and when it is not held back any more."""
        attempts = 1
        while True:
            try:
                return self._result(shard, future, name)
            except GateClosed:
                self._wait_at_gate(shard, arguments[0])
            except Failed as error:
                raise self._lost(f"{self._who(shard)} is lost: {error}") from error
            except Unanswered as error:
                if attempts == MAX_ATTEMPTS:
                    what = f"{self._who(shard)} did not answer a call of {name}, sent {attempts} times: {error}"
                    raise self._lost(what) from error
                attempts += 1
            future = self.transport.call(shard, name, *arguments)

    def _result(self, shard: int, future: Future[Any], name: str) -> Any:
        """Wait for an answer. While there is none, the shard's process must answer pings.

        Ends with ShardLost, too, when another call finds that a shard is lost.
        """
        silent, ping, most = self.patience
        end = time.monotonic() + (most if name in LIMITED else math.inf)
        while True:
            try:
                return result_of(future, max(0.0, min(silent, end - time.monotonic())))
            except TimeoutError:
                if future.done():  # now, or this is the answer
                    return future.result()
            self.check()
            if time.monotonic() >= end:
                raise self._lost(
                    f"{self._who(shard)} has not answered a call of {name} for {most:g} seconds (answer_seconds of "
                    "kvemb.cluster.open), although its process runs: its disk hangs, or the call is too large"
                )
            try:
                result_of(self.transport.ping(shard), ping)
            except Unanswered:
                pass  # the process has ended: soon it is known that there will be no answer
            except TimeoutError as error:
                if not future.done():
                    waited = f"{silent + ping:g} seconds: its process or its disk hangs"
                    what = f"{self._who(shard)} has not answered a call of {name} and a ping for {waited}"
                    raise self._lost(what) from error

    def _lost(self, what: str) -> ShardLost:
        error = ShardLost(f"{what}; {self._advice()}")
        self.lose(error)
        return error

    def _wait_at_gate(self, shard: int, stamp: Stamp) -> None:
        pause, begun = MIN_PAUSE, False
        while not begun:
            self.check()
            if self.on_wait is not None:
                self.on_wait()
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
            begun = self.answer(shard, self.transport.call(shard, "admits", stamp), "admits", (stamp,))


class _Sent:
    """A call that goes to some shards. results: by shard. failure: what the first failing one raised."""

    def __init__(self, calls: Calls, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        self._calls, self._name, self._arguments = calls, name, arguments
        self._waiting: dict[int, Future[Any]] = {}
        self.results: dict[int, Any] = {}
        self.failure: Exception | None = None

    def send(self) -> None:
        """Send it to all."""
        for shard, given in self._arguments.items():
            self._waiting[shard] = self._calls.transport.call(shard, self._name, *given)

    def finish(self) -> None:
        """Wait for all answers that are missing. May be called again after Ctrl-C."""
        while self._waiting:
            shard, future = next(iter(self._waiting.items()))
            try:
                self.results[shard] = self._calls.answer(shard, future, self._name, self._arguments[shard])
            except Exception as error:
                self.failure = self.failure or error
            del self._waiting[shard]
