"""A client's channels to one shard. Thread-safe.

A channel has one call at a time, so there are as many as calls at the same time, and those whose call was answered are
kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from kvemb.cluster.data_plane.channel import Channel, Keeper
from kvemb.cluster.data_plane.encoding import Message
from kvemb.cluster.data_plane.flight_client import FlightChannel
from kvemb.cluster.data_plane.flight_parts import SCHEME
from kvemb.cluster.data_plane.unix_client import UnixChannel
from kvemb.cluster.transport import Unanswered
from kvemb.threads.pool import Threads

# Channels to a shard that are kept.
MAX_FREE = 16


class Link(Keeper):
    """See the module. reach(): asks the shard for its address; raises Unanswered. token: the cluster's.

    threads: in which calls wait that cannot be sent at once.
    """

    def __init__(self, reach: Callable[[], str], token: bytes, threads: Threads) -> None:
        self._reach, self._token, self._threads = reach, token, threads
        self._free: deque[Channel] = deque()
        self._address: str | None = None
        self._closed = False

    def call(self, name: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Start a call: Transport.call. The arguments may be changed when the future is done."""
        message = Message((name, arguments))
        channel = self._ready_channel()
        if channel is None:
            return self._threads.submit(self._call_by_new_channel, message)
        return channel.call(message, self)

    def _ready_channel(self) -> Channel | None:
        """Take the kept channel that was used last, of those that are ready."""
        for _ in range(len(self._free)):
            with suppress(IndexError):  # another thread has it
                channel = self._free.pop()
                try:
                    if channel.ready():
                        return channel
                    self._free.appendleft(channel)
                except Unanswered:
                    channel.close()
        return None

    def _call_by_new_channel(self, message: Message) -> Any:
        if self._closed:
            raise Unanswered("the cluster was closed")
        address = self._address or self._reach()
        channel: Channel
        try:
            if address.startswith(SCHEME):
                channel = FlightChannel(address, self._token, self._threads)
            else:
                channel = UnixChannel(address, self._token)
        except Unanswered:
            self._address = None
            raise
        self._address = address
        return channel.exchange(message, self)

    def release(self, channel: Channel) -> None:
        if self._closed or len(self._free) >= MAX_FREE:
            channel.close()
        else:
            self._free.append(channel)

    def broken(self, channel: Channel) -> None:
        self._address = None
        channel.close()
        self._end_free()

    def _end_free(self) -> None:
        with suppress(IndexError):
            while True:
                self._free.pop().close()

    def close(self) -> None:
        """End all connections; later calls get no answer."""
        self._closed = True
        self._end_free()
