"""The calls that a shard has executed, so that none is executed twice, and the gate that a cut closes
(kvemb.cluster.coordination.cuts).

Each client numbers its calls. With each call it sends the number below which it has all answers, and the shard forgets
the calls below that number. While the gate is closed, a call that was not executed before is refused with GateClosed,
unless it was admitted, and its client sends it again. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from kvemb.cluster.transport import GateClosed, done
from kvemb.threads.interrupts import result_of

Given = ParamSpec("Given")
Result = TypeVar("Result")
# The most recent clients are remembered. A client repeats a call within seconds, or never.
MAX_CLIENTS = 4096


class Stamp(NamedTuple):
    """The identity of a call. client: random text. number: counts the client's calls, from 0. answered: the client has
    the answers to all calls below this number. shards: those to which the call goes, as a bit mask: bit i is shard i.
    """

    client: str
    number: int
    answered: int
    shards: int


class ExecutedCalls(NamedTuple):
    """The calls of one client that a shard has executed. answered: see Stamp. calls: the `shards` of those from
    there on, by number.
    """

    answered: int
    calls: dict[int, int]


# A client, and the number of its call.
CallId = tuple[str, int]
# Executed calls as a checkpoint has them: for each client its `answered`, then the numbers from there on, ascending.
StoredCalls = dict[str, list[int]]


class _Call(NamedTuple):
    """A call that was begun. result: done once the call was executed."""

    result: Future[Any]
    shards: int


class _Client:
    """The calls of one client. made: by number, those that may arrive again."""

    def __init__(self) -> None:
        self.answered = 0
        self.made: dict[int, _Call] = {}

    def knows(self, stamp: Stamp) -> bool:
        """Whether this call was executed or is being executed. Forgets calls that cannot arrive again."""
        if stamp.answered > self.answered:
            self.answered = stamp.answered
            for number in [number for number in self.made if number < stamp.answered]:
                del self.made[number]
        return stamp.number < self.answered or stamp.number in self.made


class Ledger:
    """The calls of all clients, and the gate. changes: how many calls may have changed what a checkpoint has.

    uses: how many calls may have recorded uses of rows, and changed nothing else that a checkpoint has.
    """

    def __init__(self) -> None:
        self.changes = self.uses = 0
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._lock = threading.Lock()
        # The gate. _cut: number of the cut that closed it, None while it is open; _ended: number of the last cut that
        # ended.
        self._cut: int | None = None
        self._ended = -1
        self._cutter = ""
        self._admitted: set[CallId] = set()

    # Calls that were executed.

    def to_json(self) -> StoredCalls:
        """Return the calls that were executed."""
        with self._lock:
            return {name: [client.answered, *sorted(client.made)] for name, client in self._clients.items()}

    def add(self, made: StoredCalls) -> None:
        """Add calls that to_json() returned: if one arrives again, it is not executed, and its result is None."""
        with self._lock:
            for name, (answered, *numbers) in made.items():
                client = self._client(name)
                client.answered = max(client.answered, answered)
                client.made.update({number: _Call(done(None), 0) for number in numbers})

    @contextmanager
    def using(self, stamp: Stamp | None) -> Iterator[bool]:
        """Yield whether a call that reads should record uses: not if it was begun before. stamp: None records none.

        Raises GateClosed.
        """
        future = None if stamp is None else self._begin(stamp, uses=True)[0]
        try:
            yield future is not None
        finally:
            if future is not None:
                future.set_result(None)

    def once(self, stamp: Stamp, work: Callable[[], Any], *, changes: bool = False) -> Any:
        """Execute a call, work(), unless it was executed before; return what it returned, or raise what it raised.

        changes: whether it counts as a change. Waits if the call is being executed. Returns None for a call
        whose answer the client has. Raises GateClosed.
        """
        mine, future = self._begin(stamp, changes=changes)
        if mine is not None:
            try:
                mine.set_result(work())
            except BaseException as error:
                mine.set_exception(error)
        return None if future is None else result_of(future)

    def count_change(self) -> None:
        """Count a change that a call turned out to be."""
        with self._lock:
            self.changes += 1

    def _begin(
        self, stamp: Stamp, *, changes: bool = False, uses: bool = False
    ) -> tuple[Future[Any] | None, Future[Any] | None]:
        """Return the future to complete if the call must be executed now, and that of its result if there is one."""
        with self._lock:
            client = self._client(stamp.client)
            if client.knows(stamp):
                known = client.made.get(stamp.number)
                return None, None if known is None else known.result
            if not self._lets_in(stamp):
                raise GateClosed
            future: Future[Any] = Future()
            client.made[stamp.number] = _Call(future, stamp.shards)
            self.changes += changes
            self.uses += uses
            return future, future

    # The gate.

    def admits(self, stamp: Stamp) -> bool:
        """Whether a call that was refused with GateClosed would be accepted now."""
        with self._lock:
            return self._lets_in(stamp)

    def _lets_in(self, stamp: Stamp) -> bool:
        return self._cut is None or stamp.client == self._cutter or (stamp.client, stamp.number) in self._admitted

    def hold(self, cut: int, cutter: str) -> dict[str, ExecutedCalls]:
        """Close the gate, wait for calls that are being executed, and return all that were executed.

        cut: larger than the number of every earlier cut. cutter: the client that makes the cut; its calls pass the
        gate, and are neither waited for nor returned. Repeating the call changes nothing.
        """
        with self._lock:
            if cut > self._ended and cut != self._cut:
                self._cut, self._cutter, self._admitted = cut, cutter, set()
            clients = [client for name, client in self._clients.items() if name != cutter]
            running = [call.result for client in clients for call in client.made.values()]
        wait(running)
        with self._lock:
            return {
                name: ExecutedCalls(client.answered, {number: call.shards for number, call in client.made.items()})
                for name, client in self._clients.items()
                if name != cutter
            }

    def admit(self, cut: int, calls: Collection[CallId], seconds: float) -> list[CallId]:
        """Admit some calls, and wait at most so many seconds until they were executed; returns those that were not."""
        deadline = time.monotonic() + seconds
        with self._lock:
            if cut == self._cut:
                self._admitted.update(calls)
        late = list(calls)
        while True:
            late = [call for call in late if not self._was_made(*call)]
            if not late or time.monotonic() >= deadline:
                return late
            time.sleep(_TURN_SECONDS)

    def _was_made(self, client: str, number: int) -> bool:
        with self._lock:
            known = self._clients.get(client)
            if known is None:
                return False
            call = known.made.get(number)
            return number < known.answered if call is None else call.result.done()

    def release(self, cut: int) -> None:
        """Open the gate."""
        with self._lock:
            self._ended = max(self._ended, cut)
            if self._cut is not None and self._cut <= cut:
                self._cut = None

    def _client(self, name: str) -> _Client:
        found = self._clients.get(name)
        if found is None:
            found = self._clients[name] = _Client()
        self._clients.move_to_end(name)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return found


# Interval at which admit() checks whether the admitted calls were executed.
_TURN_SECONDS = 0.002


def once(
    *, changes: bool = False
) -> Callable[[Callable[Concatenate[Any, Given], Result]], Callable[Concatenate[Any, Stamp, Given], Result]]:
    """Return a decorator of a method, which then takes a Stamp first, and is executed as by once() of self.ledger."""

    def decorate(
        method: Callable[Concatenate[Any, Given], Result],
    ) -> Callable[Concatenate[Any, Stamp, Given], Result]:
        @wraps(method)
        def call(self: Any, stamp: Stamp, /, *given: Given.args, **named: Given.kwargs) -> Result:
            result: Result = self.ledger.once(stamp, lambda: method(self, *given, **named), changes=changes)
            return result

        return call

    return decorate


def joined_calls(parts: Iterable[StoredCalls]) -> StoredCalls:
    """Return the calls that any of some shards has executed.

    In a checkpoint these are the calls of all shards, because it has no partial calls.
    """
    joined: dict[str, tuple[int, set[int]]] = {}
    for part in parts:
        for client, (answered, *numbers) in part.items():
            before, known = joined.get(client, (0, set()))
            joined[client] = max(before, answered), known.union(numbers)
    return {
        client: [answered, *sorted(number for number in numbers if number >= answered)]
        for client, (answered, numbers) in joined.items()
    }
