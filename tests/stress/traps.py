"""Traps: a process kills itself with SIGKILL at a chosen point of a message between a client and a shard.

Functions of the data plane, through shared memory and through Arrow Flight, are replaced in that process alone.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

import numpy as np

from kvemb.cluster.data_plane import flight_parts, serving
from kvemb.cluster.data_plane.encoding import Bytes, Message, read
from kvemb.cluster.data_plane.unix_peer import UnixPeer
from kvemb.cluster.in_flight.accepted_steps import Accepted
from kvemb.cluster.ledger import Stamp
from kvemb.cluster.messages import ChangeRequest
from kvemb.cluster.ray_transport import RayTransport
from kvemb.cluster.shard import Shard

# half written: some bytes of a message are where its receiver reads, or on their way. arrived: a message was received,
# and is not read yet. executed: a shard has executed a change, and has not answered. accepted: a shard has answered a
# step, and has not taken it. half sent: a client has sent a change to some of its shards.
OF_SHARDS = ("half written", "arrived", "executed", "accepted")
OF_CLIENTS = ("half written", "arrived", "half sent")
# How often a process passes its point before it ends there, at most.
MAX_PASSED = 20
_CHANGES = frozenset(["change", "begin_step", "put_part", "step_together"])


def end(*_: object) -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def spring(point: str, after: int) -> None:
    """Make this process end at a point of OF_SHARDS or OF_CLIENTS that it has passed `after` times."""
    passed = itertools.count()
    _TRAPS[point](lambda: next(passed) >= after)


def _write_half(now: Callable[[], bool]) -> None:
    write, send = UnixPeer.write, flight_parts.send

    def written(peer: UnixPeer, message: Message) -> None:
        if now():
            _replace(Message, "write", _half)
        write(peer, message)

    def sent(writer: Any, message: Message) -> None:
        if now():
            _replace(flight_parts, "PART_BYTES", max(1, message.nbytes // 2))
            send(_FirstPart(writer), message)
        send(writer, message)

    _replace(UnixPeer, "write", written)
    _replace(flight_parts, "send", sent)


def _half(message: Message, to: Bytes, write: Callable[[Message, Bytes], None] = Message.write) -> None:
    whole = np.empty(message.nbytes, np.uint8)
    write(message, whole)
    to[: len(whole) // 2] = whole[: len(whole) // 2]
    end()


class _FirstPart:
    """A Flight stream in which the process ends when it has written a message's first part."""

    write_batch = end

    def __init__(self, writer: Any) -> None:
        self.write_with_metadata = writer.write_with_metadata


def _receive(now: Callable[[], bool]) -> None:
    def reading(message: Bytes) -> Any:
        return end() if now() else read(message)

    _replace(serving, "read", reading)


def _execute(now: Callable[[], bool]) -> None:
    call = Shard.call

    def executed(shard: Shard, name: str, arguments: tuple[Any, ...]) -> Any:
        result = call(shard, name, arguments)
        if name in _CHANGES and now():
            if isinstance(result, Accepted):
                result.rest()
            end()
        return result

    _replace(Shard, "call", executed)


def _accept(now: Callable[[], bool]) -> None:
    begin_step = Shard.begin_step

    def accepted(shard: Shard, stamp: Stamp, changes: list[ChangeRequest]) -> Accepted:
        result = begin_step(shard, stamp, changes)
        return Accepted(result.result, end) if now() else result

    _replace(Shard, "begin_step", accepted)


def _send_half(now: Callable[[], bool]) -> None:
    call = RayTransport.call

    def sent(transport: RayTransport, shard: int, name: str, *arguments: Any) -> Future[Any]:
        future = call(transport, shard, name, *arguments)
        if name in _CHANGES and shard == 0 and now():
            future.exception()  # this shard has executed its part, and the others have not got theirs
            end()
        return future

    _replace(RayTransport, "call", sent)


_TRAPS = {
    "half written": _write_half,
    "arrived": _receive,
    "executed": _execute,
    "accepted": _accept,
    "half sent": _send_half,
}


def _replace(where: Any, name: str, value: Any) -> None:
    setattr(where, name, value)
