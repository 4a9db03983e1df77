"""One end of a Unix socket between two processes of one node. Linux only; not thread-safe.

Each end writes messages to a segment of its own, which the other end maps, and announces them by a frame on the socket.
So nobody reads a message that is not complete: who is killed while it writes sends no frame. The ends take turns, so a
segment is written to only when the other end has read what it had. A message that is larger than the segment has one of
its own, which comes with the frame.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import struct

from kvemb.cluster.data_plane.encoding import Bytes, Message
from kvemb.cluster.data_plane.segment import Segment, created

# Of each end of each connection. Only pages that were written to take memory.
SEGMENT_BYTES = 8 << 20
# Kinds of frames. SPENT: an answer whose receiver must close the connection, as the sender still uses the call's bytes.
# HELD: an answer whose sender uses the call's bytes until it sends FREE or SPENT, without a message.
CALL, ANSWER, SPENT, HELD, FREE = range(5)
_FRAME = struct.Struct("<BQ")  # kind, bytes of the message
_MAX_GREETING = 256


class UnixPeer:
    """One end, after the greeting. REQUIRES: a socket of SOCK_SEQPACKET, which the object closes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        descriptor = created(SEGMENT_BYTES)
        try:
            self._own = Segment(descriptor)
            self._descriptor: int | None = descriptor  # of a segment to be sent
        except BaseException:
            os.close(descriptor)
            raise

    def greet(self, token: bytes) -> None:
        """Send the token, and the segment. Called once."""
        assert self._descriptor is not None
        socket.send_fds(self._socket, [token], [self._descriptor])
        self._end_descriptor()

    def greeted(self, token: bytes) -> bool:
        """Receive the other end's greeting; returns whether it has the token. Raises OSError, ValueError."""
        said, descriptors = self._received(_MAX_GREETING)
        try:
            if not hmac.compare_digest(said, token) or len(descriptors) != 1:
                return False
            self._other = Segment(descriptors[0])
            return True
        finally:
            for each in descriptors:
                os.close(each)

    def write(self, message: Message) -> None:
        """Write a message for announce(). Raises OSError if there is no memory."""
        self._nbytes = message.nbytes
        if self._nbytes <= SEGMENT_BYTES:
            message.write(self._own.part(self._nbytes))
            return
        self._descriptor = created(self._nbytes)
        message.write(Segment(self._descriptor).part(self._nbytes))

    def announce(self, kind: int) -> None:
        """Send the frame of the message that was written, if any. Raises OSError if the other end is gone."""
        descriptors = [] if self._descriptor is None else [self._descriptor]
        socket.send_fds(self._socket, [_FRAME.pack(kind, self._nbytes)], descriptors)
        self._nbytes = 0
        self._end_descriptor()

    def receive(self, timeout: float | None = None) -> tuple[int, Bytes]:
        """Wait for a frame; returns its kind, and its message where the other end wrote it.

        Raises TimeoutError, EOFError if the other end has closed the connection, OSError, ValueError.
        """
        self._socket.settimeout(timeout)
        frame, descriptors = self._received(_FRAME.size)
        try:
            if not frame:
                raise EOFError("the connection was closed")
            if len(frame) != _FRAME.size:
                raise ValueError(f"a frame of {len(frame)} bytes")
            kind, nbytes = _FRAME.unpack(frame)
            return kind, (Segment(descriptors[0]) if descriptors else self._other).part(nbytes)
        finally:
            for each in descriptors:
                os.close(each)

    def _received(self, most: int) -> tuple[bytes, list[int]]:
        said, descriptors, *_ = socket.recv_fds(self._socket, most, 1)
        return said, descriptors

    def readable(self) -> bool:
        """Whether a frame has arrived, or the other end has closed the connection."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection. The segments last as long as arrays that view them."""
        self._end_descriptor()
        self._socket.close()

    def _end_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
