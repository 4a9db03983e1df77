"""Takes calls of processes of the same node, one thread for each connection.

The socket's name is in Linux's abstract namespace, so it ends with the process. Who connects must send the token at
once. A call's arrays are views of the caller's segment. If anything still refers to them after the call,
such as a thread that was started, the caller is told to use the connection no more, so their bytes do not change.
"""

from __future__ import annotations

import pickle
import socket
import threading
import time
import uuid
import weakref
from contextlib import closing, suppress

from kvemb.cluster.data_plane.serving import Dumps, answered
from kvemb.cluster.data_plane.unix_peer import ANSWER, CALL, FREE, HELD, SPENT, UnixPeer
from kvemb.cluster.local import Callee

GREETING_SECONDS = 10.0
_WAITING = 128
_PAUSE_SECONDS = 0.1


class UnixServer:
    """See the module. token: what callers must send, within greeting_seconds. address: its own."""

    def __init__(
        self,
        callee: Callee,
        token: bytes,
        dumps: Dumps = pickle.dumps,
        *,
        greeting_seconds: float = GREETING_SECONDS,
    ) -> None:
        self._callee, self._token, self._dumps, self._greeting_seconds = callee, token, dumps, greeting_seconds
        self._open, self._lock, self._closed = set[socket.socket](), threading.Lock(), False
        self.address = f"kvemb-{uuid.uuid4().hex}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(f"\0{self.address}")
        self._listening.listen(_WAITING)
        threading.Thread(target=self._accept, name="kvemb-accept", daemon=True).start()

    def close(self) -> None:
        """Take no more calls, and close all connections. Idempotent."""
        with self._lock:
            self._closed = True
            for each in [self._listening, *self._open]:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it

    def _accept(self) -> None:
        with self._listening:
            while not self._closed:
                try:
                    connection, _ = self._listening.accept()
                    threading.Thread(target=self._serve, args=[connection], name="kvemb-serve", daemon=True).start()
                except (OSError, RuntimeError):  # it is closed, or there are too many files or threads at the moment
                    time.sleep(_PAUSE_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._open.add(connection)
        try:
            connection.settimeout(self._greeting_seconds)
            with closing(UnixPeer(connection)) as peer, suppress(OSError, EOFError, ValueError):  # who called is gone
                if peer.greeted(self._token):
                    peer.greet(b"")
                    while True:
                        self._answer(peer)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _answer(self, peer: UnixPeer) -> None:
        kind, call = peer.receive()
        if kind != CALL:
            raise ValueError(f"a frame of kind {kind}")
        in_use = weakref.ref(call)
        answer, rest = answered(self._callee, call, self._dumps)
        try:
            peer.write(answer)
            if rest is not None:
                peer.announce(HELD)
        finally:
            if rest is not None:  # the caller may be gone, but the call is accepted
                rest()
        done = ANSWER if rest is None else FREE
        del call, answer, rest
        peer.announce(done if in_use() is None else SPENT)
