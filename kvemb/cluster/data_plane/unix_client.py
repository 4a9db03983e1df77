"""A channel to a shard on the same node, and the answers that come through it."""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kvemb.cluster.data_plane.channel import Channel, Keeper, unanswered, unconnected
from kvemb.cluster.data_plane.encoding import Message
from kvemb.cluster.data_plane.serving import outcome
from kvemb.cluster.data_plane.unix_peer import CALL, FREE, HELD, SPENT, UnixPeer
from kvemb.cluster.transport import failed

CONNECT_SECONDS = 10.0


class UnixChannel(Channel):
    """See Channel. address: of a UnixServer. held: whether the shard uses the bytes of the last call until it says so.

    Raises Unanswered.
    """

    held = False

    def __init__(self, address: str, token: bytes) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(f"\0{address}")
            self.peer = UnixPeer(connection)
            self.peer.greet(token)
            if not self.peer.greeted(b""):
                raise EOFError("it was refused")
        except (OSError, EOFError, ValueError) as error:
            connection.close()
            raise unconnected(error) from error

    def call(self, message: Message, keeper: Keeper) -> Future[Any]:
        try:
            self.peer.write(message)
            self.peer.announce(CALL)
        except OSError as error:
            keeper.broken(self)
            return failed(unanswered(error))
        return UnixAnswer(self, keeper)

    def exchange(self, message: Message, keeper: Keeper) -> Any:
        return self.call(message, keeper).result()

    def ready(self) -> bool:
        if not self.held:
            return True
        if not self.peer.readable():
            return False
        self.held = False
        try:
            kind, _ = self.peer.receive()
            if kind != FREE:
                raise EOFError("the shard still uses the bytes of a call")
        except (OSError, EOFError, ValueError) as error:
            raise unanswered(error) from error
        return True

    def close(self) -> None:
        self.peer.close()

    def __del__(self) -> None:
        if hasattr(self, "peer"):
            self.close()


class UnixAnswer(Future[Any]):
    """An answer, received by the thread that asks for it, so that no other thread has to wake it.

    Its arrays are views of the shard's segment. When nothing refers to them any more, the channel is released. If
    nobody asks for the answer, the channel is closed. concurrent.futures.wait() does not work with it.
    """

    def __init__(self, channel: UnixChannel, keeper: Keeper) -> None:
        super().__init__()
        self._channel: UnixChannel | None = channel
        self._keeper, self._receiving = keeper, threading.Lock()

    def result(self, timeout: float | None = None) -> Any:
        self._receive(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._receive(timeout)
        return super().exception(timeout)

    def done(self) -> bool:
        channel = self._channel
        if channel is None or super().done():
            return True
        return channel.peer.readable()

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Start a thread, which waits for the answer: Future.add_done_callback."""
        super().add_done_callback(fn)
        threading.Thread(target=self.exception, name="kvemb-answer", daemon=True).start()

    def _receive(self, timeout: float | None) -> None:
        """Wait for the answer, unless it was received. Raises TimeoutError."""
        if not self._receiving.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        try:
            if (channel := self._channel) is None:
                return
            try:
                kind, answer = channel.peer.receive(timeout)
            except TimeoutError:
                raise
            except (OSError, EOFError, ValueError) as error:
                self._channel = None
                self._keeper.broken(channel)
                self.set_exception(unanswered(error))
                return
            self._channel = None
            if kind != SPENT:
                channel.held = kind == HELD
                weakref.finalize(answer, self._keeper.release, channel).atexit = False
            failed, result = outcome(answer)
            if failed:
                self.set_exception(result)
            else:
                self.set_result(result)
        finally:
            self._receiving.release()
