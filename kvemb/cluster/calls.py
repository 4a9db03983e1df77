"""A client's calls of shards: numbered, sent to all shards at once, and repeated if no answer comes. Thread-safe."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from kvemb.cluster.ledger import Stamp
from kvemb.cluster.transport import LIMITED, GateClosed, ShardFailed, Transport, Unanswered
from kvemb.errors import ShardLost
from kvemb.threads.interrupts import result_of, uninterrupted

# How often a call is sent in vain before its shard counts as lost.
MAX_ATTEMPTS = 5
# Interval between two questions whether a call that is held back may be sent; doubled each time.
MIN_PAUSE, MAX_PAUSE = 0.001, 0.05

ADVICE = "recover() takes the whole cluster back to its last checkpoint; so does closing it and opening it again"


# How long an answer may still arrive after its shard's process has ended.
_LAST_SECONDS = 5.0


class Timeouts(NamedTuple):
    """Timeouts, in seconds. silent: after so long without an answer, a shard is sent a ping.

    ping: within which it must answer the ping. most: within which it must answer a call of LIMITED (transport), even if
    it answers pings.
    """

    silent: float = 30.0
    ping: float = 30.0
    most: float = math.inf

    @classmethod
    def within(cls, seconds: float) -> Timeouts:
        """Return the timeouts of calls that may take so many seconds."""
        return cls(min(30.0, seconds / 2), min(30.0, seconds / 2), seconds)


TIMEOUTS = Timeouts()


class Calls:
    """The calls of one client. who(shard): its name in messages. advice(): the end of messages about a loss.

    timeouts: of its calls.

    client: its identity. lost: the error of the first lost shard, None if there is none; once set, every call raises
    ShardLost. on_loss(error), if set, is called when a call finds a loss; on_wait() is called while a call is held
    back.
    """

    def __init__(
        self,
        transport: Transport,
        who: Callable[[int], str] = "shard {}".format,
        advice: Callable[[], str] = lambda: ADVICE,
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        self.transport, self.client = transport, uuid.uuid4().hex
        self.lost: ShardLost | None = None
        self.on_loss: Callable[[ShardLost], None] | None = None
        self.on_wait: Callable[[], None] | None = None
        self.timeouts, self._who, self._advice = timeouts, who, advice
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
        """As all(), for a call that a shard must not execute twice: adds a Stamp as its first argument."""
        with self.stamped(range(self.transport.shards)) as stamp:
            return self.all(name, stamp, *arguments)

    def each(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Make a call on some shards at once, by number; returns their results once all have answered.

        A call without an answer is sent again unchanged, so it must have a Stamp as its first argument, or only
        read. When all calls have ended, raises what the first failing shard raised, or ShardLost. Ctrl-C is also raised
        only then, because a call is complete only when all of its shards have executed it.
        """
        self.check()
        waiting: dict[int, Future[Any]] = {}
        results: dict[int, Any] = {}
        failures: list[Exception] = []

        def finish() -> None:
            while waiting:
                shard, future = next(iter(waiting.items()))
                try:
                    results[shard] = self.answer(shard, future, name, arguments[shard])
                except Exception as error:
                    failures.append(error)
                del waiting[shard]

        try:
            with uninterrupted():
                for shard, given in arguments.items():
                    waiting[shard] = self.transport.call(shard, name, *given)
            finish()
        except BaseException:  # Ctrl-C
            with uninterrupted():
                finish()
            raise
        if failures:
            raise failures[0]
        return {shard: results[shard] for shard in arguments}

    def check(self) -> None:
        """Raise ShardLost once a shard is lost."""
        if self.lost is not None:
            raise ShardLost(str(self.lost))

    def lose(self, error: ShardLost) -> None:
        """Make every later call raise ShardLost. The first reason is kept."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = error
        if self.on_loss is not None:
            self.on_loss(error)

    def answer(self, shard: int, future: Future[Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Wait for an answer. Sends the call again if none came, or when it is no longer held back."""
        attempts = 1
        while True:
            try:
                return self._result(shard, future, name)
            except GateClosed:
                self._wait_at_gate(shard, arguments[0])
                attempts = 1  # it was answered
            except ShardFailed as error:
                raise self._lost(f"{self._who(shard)} is lost: {error}") from error
            except Unanswered as error:
                if attempts == MAX_ATTEMPTS:
                    what = f"{self._who(shard)} did not answer a call of {name}, sent {attempts} times: {error}"
                    raise self._lost(what, error) from None
                attempts += 1
            future = self.transport.call(shard, name, *arguments)

    def _result(self, shard: int, future: Future[Any], name: str) -> Any:
        """Wait for an answer. Until it comes, the shard's process must answer pings.

        Also raises ShardLost when another call finds that a shard is lost.
        """
        silent, ping, most = self.timeouts
        end = time.monotonic() + (most if name in LIMITED else math.inf)
        while True:
            try:
                return result_of(future, max(0.0, min(silent, end - time.monotonic())))
            except TimeoutError:
                if future.done():  # the answer has come by now, or it is this timeout
                    return future.result()
            self.check()
            if time.monotonic() >= end:
                raise self._lost(
                    f"{self._who(shard)} has not answered a call of {name} for {most:g} seconds (answer_seconds of "
                    "kvemb.cluster.open), although its process runs: its disk hangs, or the call is too large"
                )
            try:
                result_of(self.transport.ping(shard), ping)
            except Unanswered as error:  # the process has ended, which the future may never learn if its node is gone
                with suppress(TimeoutError):
                    return result_of(future, min(ping, _LAST_SECONDS))
                raise error
            except TimeoutError:
                if not future.done():
                    waited = f"{silent + ping:g} seconds: its process or its disk hangs"
                    what = f"{self._who(shard)} has not answered a call of {name} and a ping for {waited}"
                    raise self._lost(what) from None

    def _lost(self, what: str, why: Exception | None = None) -> ShardLost:
        """Return the error, once every later call raises it. why: what was met; its cause is told in one line.

        Tracebacks of that are a hundred lines inside of Ray, on each rank.
        """
        error = ShardLost(f"{what}; {self._advice()}")
        if why is not None and why.__cause__ is not None and (told := str(why.__cause__).split("\n")):
            error.add_note(f"{type(why.__cause__).__name__}: {told[-1] or told[0]}")
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
