"""A channel between the ranks of a group, on which they agree on each step: messages of numbers and text, in JSON.

The first rank of the group leads: each other rank has a TCP connection to it. So a rank that ends is noticed at once,
and one that hangs after a timeout, and the leader says which one it was. torch.distributed says neither, and after a
timeout cannot be used any more. Not thread-safe.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

from kvemb import errors
from kvemb.errors import KvembError, RankLost

Message = dict[str, Any]
# How long a short message may take to be sent: a connection takes it at once.
SEND_SECONDS = 30.0
MAX_BYTES = 64 << 20
_LENGTH = 4


class Ranks:
    """See the module. rank: of this process in the group. names: of each rank, in messages. leader: the connection to
    the first rank; followers: on the first rank, the connections to the others, by rank. They are closed when nothing
    refers to this object any more.
    """

    def __init__(
        self, rank: int, names: list[str], leader: socket.socket | None, followers: dict[int, socket.socket]
    ) -> None:
        self.rank, self.size, self.names = rank, len(names), names
        self._leader, self._followers = leader, followers
        self._lost: RankLost | None = None
        self._close = finalize(self, _close, [*followers.values(), *([] if leader is None else [leader])])

    def meet(
        self,
        mine: Callable[[], Message],
        decide: Callable[[list[Message]], Message],
        timeout: float,
        extra_seconds: float = 0.0,
    ) -> Message:
        """Return the answer that the first rank gives to the messages of all ranks. All ranks must call this.

        mine: makes this rank's message. decide: on the first rank, returns the answer to all messages, in the order of
        ranks; it may take extra_seconds. If either raises an error on one rank, all ranks raise it. timeout: seconds
        that a rank may come later than the first one. Raises RankLost.
        """
        if self._lost is not None:
            raise RankLost(str(self._lost)) from self._lost
        try:
            if self._leader is not None:
                return self._follow(self._leader, mine, 2 * timeout + extra_seconds)
            return self._lead(mine, decide, timeout)
        except RankLost as error:
            self._lost = error
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: the others must not wait for the rest
                self.fail(error)
            raise

    def _follow(self, leader: socket.socket, mine: Callable[[], Message], seconds: float) -> Message:
        failure, message = _tried(mine)
        deadline = time.monotonic() + seconds
        try:
            with suppress(ConnectionError):  # the leader has ended, and may have said why
                send(leader, message, deadline)
            answer = received(leader, deadline)
        except TimeoutError as error:
            raise RankLost(late(self.names[0], seconds)) from error
        except (OSError, ValueError) as error:
            raise RankLost(_ended(self.names[0])) from error
        if failure is not None:
            raise failure
        return self._answer(answer)

    def _answer(self, answer: Message) -> Message:
        if "lost" in answer:
            raise RankLost(answer["lost"])
        if "error" in answer:
            raise error_of(*answer["error"])
        return answer

    def _lead(self, mine: Callable[[], Message], decide: Callable[[list[Message]], Message], timeout: float) -> Message:
        failure, message = _tried(mine)
        try:
            messages = [message, *self._collected(timeout)]
        except RankLost as error:
            self._tell({"lost": str(error)})
            raise
        failed = [(rank, each) for rank, each in enumerate(messages) if "error" in each]
        if failed:
            rank, (kind, text) = failed[0][0], failed[0][1]["error"]
            answer: Message = {"error": [kind, f"{self.names[rank]}: {text}"]}
        else:
            failure, answer = _tried(lambda: decide(messages))
        self._tell(answer)
        if failure is not None:
            raise failure
        return self._answer(answer)

    def _collected(self, timeout: float) -> list[Message]:
        """Return the messages of the other ranks. Raises RankLost."""
        deadline, found = time.monotonic() + timeout, dict[int, Message]()
        with selectors.DefaultSelector() as waiting:
            for rank, connection in self._followers.items():
                waiting.register(connection, selectors.EVENT_READ, rank)
            while len(found) < len(self._followers):
                ready = waiting.select(max(0.0, deadline - time.monotonic()))
                for key, _ in ready:
                    name = self.names[key.data]
                    try:
                        found[key.data] = message = received(key.fileobj, deadline)
                    except TimeoutError as error:
                        raise RankLost(late(name, timeout)) from error
                    except (OSError, ValueError) as error:
                        raise RankLost(_ended(name)) from error
                    if "lost" in message:
                        raise RankLost(message["lost"])
                    waiting.unregister(key.fileobj)
                if not ready and time.monotonic() >= deadline:
                    missing = [self.names[rank] for rank in self._followers if rank not in found]
                    raise RankLost(late(" and ".join(missing), timeout))
        return [found[rank] for rank in sorted(found)]

    def _tell(self, answer: Message) -> None:
        """Send an answer to all other ranks. One that has ended is noticed by the next step."""
        for connection in self._followers.values():
            with suppress(OSError):
                send(connection, answer, time.monotonic() + SEND_SECONDS)

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one ends with an error, unless a rank is lost already."""
        if self._lost is None:
            lost = RankLost(f"{self.names[self.rank]} has ended: {type(error).__name__}: {error}; {_ADVICE}")
            if self._leader is not None:
                with suppress(OSError):
                    send(self._leader, {"lost": str(lost)}, time.monotonic() + SEND_SECONDS)
            self._tell({"lost": str(lost)})
            self._lost = lost

    def told(self) -> str | None:
        """Return what another rank has told with fail(), or None. REQUIRES: no meeting under way."""
        if self._lost is not None:
            return str(self._lost)
        for connection in [self._leader] if self._leader is not None else self._followers.values():
            with suppress(OSError, ValueError):
                message = received(connection, time.monotonic() + 0.001)
                if "lost" in message:
                    return str(message["lost"])
        return None

    def close(self) -> None:
        """Close the connections. Idempotent. The other ranks notice it if they wait for this one."""
        if self._lost is None:
            self._lost = RankLost("this rank has left the group")
        self._close()


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def send(connection: socket.socket, message: Message, deadline: float) -> None:
    """Send a message. Raises OSError."""
    text = json.dumps(message).encode()
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    connection.sendall(len(text).to_bytes(_LENGTH, "big") + text)


def received(connection: Any, deadline: float, most: int = MAX_BYTES) -> Message:
    """Return the next message. Raises TimeoutError, OSError, ValueError for something else."""
    length = int.from_bytes(_bytes(connection, _LENGTH, deadline), "big")
    if length > most:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(_bytes(connection, length, deadline))
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def _bytes(connection: socket.socket, count: int, deadline: float) -> bytes:
    parts = []
    while count:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def late(who: str, seconds: float) -> str:
    """Return the message for a rank that did not come in time."""
    return f"{who} did not come to the step within {seconds:g} seconds: it hangs, or takes fewer steps; {_ADVICE}"


def _ended(who: str) -> str:
    return f"{who} has ended; {_ADVICE}"


_ADVICE = "start all ranks again, which continues from the last checkpoint"


# Errors of one rank that all ranks raise.


def _tried(made: Callable[[], Message]) -> tuple[Exception | None, Message]:
    """Return the error of a function, and its message or that of the error."""
    try:
        return None, made()
    except RankLost:
        raise
    except Exception as error:
        return error, {"error": text_of(error)}


def text_of(error: Exception) -> list[str]:
    """Return the kind and the text of an error, from which error_of() makes it on other ranks."""
    return [type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", [])])]


def error_of(kind: str, text: str) -> Exception:
    """Return the error of another rank. Of a kind that cannot be made from its text: a RuntimeError."""
    return _KINDS[kind](text) if kind in _KINDS else RuntimeError(f"{kind}: {text}")


_OF_KVEMB = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, KvembError)]
_KINDS: dict[str, type[Exception]] = {
    **{each.__name__: each for each in (ValueError, TypeError, RuntimeError, OverflowError)},
    **{each.__name__: each for each in _OF_KVEMB if "__init__" not in vars(each)},
}
