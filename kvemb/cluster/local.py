"""Shards and a coordinator in this process, for tests and for trying a program out on one machine. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kvemb.cluster.durability.folders import new_folder
from kvemb.cluster.in_flight.accepted_steps import Accepted
from kvemb.cluster.making import Plan
from kvemb.cluster.shard import Shard
from kvemb.cluster.transport import Transport, Unanswered, done, failed
from kvemb.progress import Meter
from kvemb.threads.pool import Threads

# Calls of several threads overlap; more threads than this would only wait for each other.
MAX_THREADS = 16
# shards: those whose calls this thread executes.
_thread = threading.local()


class LocalTransport(Transport):
    """See kvemb.cluster.transport. make: makes the shard with a number. release: called at the end.

    place: the folder of the shards' files. If a shard cannot be made, the earlier ones are closed, and the error is
    raised.
    """

    def __init__(
        self, make: Callable[[int], Shard], shards: int, release: Callable[[], None] = lambda: None, place: str = "here"
    ) -> None:
        self.shards, self.place, self._closed = shards, place, False
        with ExitStack() as undo:
            undo.callback(release)
            self._shards: list[Shard] = []
            for number in range(shards):
                self._shards.append(make(number))
                undo.callback(self._shards[-1].close)
            self._undo = undo.pop_all()
        mark = partial(setattr, _thread, "shards", self._shards)
        threads = min(MAX_THREADS, 2 * shards)
        self._pool = Threads(threads, thread_name_prefix="kvemb-shards", initializer=mark)
        self._closing = threading.Lock()

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            self._pool.submit(execute, self._shards[shard], name, arguments, answer)
        except RuntimeError:  # it is closed
            return failed(Unanswered("the shard was closed"))
        return answer

    def makes_calls_here(self) -> bool:
        """Whether this thread executes a call of these shards, as it does inside a user's function that they call."""
        return getattr(_thread, "shards", None) is self._shards

    def ping(self, shard: int) -> Future[Any]:
        return done(None)

    def close(self) -> None:
        with self._closing:
            if not self._closed:
                self._closed = True
                self._pool.shutdown(wait=True)
                self._undo.close()


def make_in_process(root: Path, meter: Meter, plan: Plan) -> LocalTransport:
    """Make the shards of a plan in this process, with their files in a new folder of root."""
    release = ExitStack()
    folder = new_folder(root, "kvemb-local-", release)

    def make(number: int) -> Shard:
        return plan.make(number, folder / f"shard-{number:04d}", meter)

    return LocalTransport(make, plan.shards, release.close, str(folder))


class Callee(Protocol):
    """An object whose methods can be called by name."""

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method. Its result may be Accepted."""


def execute(callee: Callee, name: str, arguments: tuple[Any, ...], answer: Future[Any]) -> None:
    """Execute a call: set its answer, then run the rest of it."""
    try:
        result = callee.call(name, arguments)
    except BaseException as error:
        answer.set_exception(error)
        return
    if isinstance(result, Accepted):
        answer.set_result(result.result)
        result.rest()
    else:
        answer.set_result(result)


class DirectTransport(Transport):
    """A transport to one object of this process, as to one shard: the caller's thread executes calls at once."""

    shards = 1

    def __init__(self, callee: Callee) -> None:
        self._callee = callee

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        execute(self._callee, name, arguments, future)
        return future

    def ping(self, shard: int) -> Future[Any]:
        return done(None)

    def close(self) -> None:
        """Do nothing: the object itself is closed by a call."""
