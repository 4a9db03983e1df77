"""What a channel to a shard must do, and who keeps the channels."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from kvemb.cluster.data_plane.encoding import Message
from kvemb.cluster.transport import Unanswered


class Keeper(Protocol):
    """Who keeps channels. Thread-safe; takes no lock, as garbage collection may call it in any function."""

    def release(self, channel: Channel) -> None:
        """Take a channel back: another call may follow once it is ready()."""

    def broken(self, channel: Channel) -> None:
        """Close a channel whose connection ended, and those that are kept, as theirs may have ended, too."""


class Channel(Protocol):
    """A connection to a shard, for one call at a time; then a method of its keeper is called."""

    def call(self, message: Message, keeper: Keeper) -> Future[Any]:
        """Send a call; returns a future of its result, which raises Unanswered if the connection ends."""

    def exchange(self, message: Message, keeper: Keeper) -> Any:
        """Send a call, and wait for its result. Raises what it raises, Unanswered."""

    def ready(self) -> bool:
        """Whether the shard uses the bytes of the last call no more. Raises Unanswered."""

    def close(self) -> None:
        """End the connection. Idempotent."""


def unanswered(error: BaseException, what: str = "the connection to its process has ended") -> Unanswered:
    """Return the error of a call without an answer, caused by another error."""
    found = Unanswered(what)
    found.__cause__ = error
    return found


def unconnected(error: BaseException) -> Unanswered:
    """As unanswered(), of a channel that could not be made."""
    return unanswered(error, "no connection to its process can be made")
