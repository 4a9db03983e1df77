"""An object whose methods are called through the data plane of a cluster."""

from __future__ import annotations

import threading
from typing import Any

from kvemb.cluster.data_plane.channel import Channel
from kvemb.cluster.data_plane.encoding import Message
from kvemb.cluster.in_flight.accepted_steps import Accepted

TOKEN, HOST = b"t" * 32, "127.0.0.1"


class Callee:
    """Answers calls. calls: the names of all. kept: what `keep` was given. waiting: what `wait` waits for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.kept: list[Any] = []
        self.waiting = threading.Event()

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Do as the name says."""
        self.calls.append(name)
        if name == "raise":
            raise arguments[0]
        if name == "keep":
            self.kept.append(arguments[0])
        if name == "wait":
            assert self.waiting.wait(60)
        if name == "errors":
            return [ValueError("first"), None, Unportable(1, 2)]
        if name == "accept":
            return Accepted(arguments[1:], lambda: self._keep_later(arguments[0]))
        if name == "fail":
            raise Unportable(1, 2)
        return arguments

    def _keep_later(self, array: Any) -> None:
        assert self.waiting.wait(60)
        self.kept.append(array.copy())


class Keeper:
    """Who keeps no channel."""

    def release(self, channel: Channel) -> None:
        """Close it."""
        channel.close()

    broken = release


def answers(channel: Channel, value: object = 1) -> bool:
    """Whether a callee answers by a channel."""
    return bool(channel.exchange(Message(("echo", (value,))), Keeper()) == (value,))


class Unportable(Exception):
    """An error that cannot be made from its pickle."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("it failed")
