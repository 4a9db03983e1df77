"""Which calls a shard has made, so that one that arrives again is not made again.

Each client numbers its calls. With each it sends the number below which it has all answers, and the shard forgets
those. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from kvemb.interrupts import result_of

# The most recent clients are remembered. A client repeats a call within seconds, or never.
MOST_CLIENTS = 4096


class Stamp(NamedTuple):
    """The identity of a call. client: random text. number: counts the client's calls, from 0. answered: the client has
    the answers to all calls below this number.
    """

    client: str
    number: int
    answered: int


class _Client:
    """The calls of one client. made: by number, those that may come again."""

    def __init__(self) -> None:
        self.answered = 0
        self.made: dict[int, Future[Any]] = {}

    def knows(self, stamp: Stamp) -> bool:
        """Whether this call was made, or is being made. Forgets what cannot come again."""
        if stamp.answered > self.answered:
            self.answered = stamp.answered
            for number in [number for number in self.made if number < stamp.answered]:
                del self.made[number]
        return stamp.number < self.answered or stamp.number in self.made


class Ledger:
    """The calls of all clients."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._lock = threading.Lock()

    def to_json(self) -> dict[str, list[int]]:
        """Return the calls that were made: for each client its `answered`, then the numbers from there on."""
        with self._lock:
            return {name: [client.answered, *sorted(client.made)] for name, client in self._clients.items()}

    def add(self, made: dict[str, list[int]]) -> None:
        """Add what to_json() returned: such a call is not made again, and its result is None."""
        with self._lock:
            for name, (answered, *numbers) in made.items():
                client = self._client(name)
                client.answered = max(client.answered, answered)
                client.made.update({number: _done() for number in numbers})

    def begin(self, stamp: Stamp) -> bool:
        """Record that a call is made; returns False if it was made before, or is being made. For calls that read."""
        with self._lock:
            client = self._client(stamp.client)
            if client.knows(stamp):
                return False
            client.made[stamp.number] = _done()
            return True

    def once(self, stamp: Stamp, work: Callable[[], Any]) -> Any:
        """Make the call, work(), unless it was made before; return what it returned, or raise what it raised.

        Waits for a call that is being made. Returns None for a call whose answer the client has.
        """
        with self._lock:
            client = self._client(stamp.client)
            known = client.knows(stamp)
            if not known:
                client.made[stamp.number] = Future()
            future = client.made.get(stamp.number)
        if future is None:
            return None
        if not known:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        return result_of(future)

    def _client(self, name: str) -> _Client:
        found = self._clients.setdefault(name, _Client())
        self._clients.move_to_end(name)
        if len(self._clients) > MOST_CLIENTS:
            self._clients.popitem(last=False)
        return found


def _done() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(None)
    return future
