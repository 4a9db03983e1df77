"""The data plane of one shard: its servers, each started when the first client asks for it."""

from __future__ import annotations

import pickle
import threading

from kvemb.cluster.data_plane.flight_server import FlightServer
from kvemb.cluster.data_plane.segment import has_segments
from kvemb.cluster.data_plane.serving import Dumps
from kvemb.cluster.data_plane.unix_server import UnixServer
from kvemb.cluster.local import Callee


class Served:
    """See the module. node: the identity of this node. host: its address. token: what callers must send.

    Thread-safe.
    """

    def __init__(self, callee: Callee, token: bytes, node: str, host: str, dumps: Dumps = pickle.dumps) -> None:
        self._callee, self._token, self._node, self._host, self._dumps = callee, token, node, host, dumps
        self._servers: dict[bool, UnixServer | FlightServer] = {}
        self._lock = threading.Lock()

    def reach(self, node: str) -> str:
        """Return the address for clients on a node: that of shared memory if it is this one."""
        here = node == self._node and has_segments()
        with self._lock:
            if here not in self._servers:
                self._servers[here] = (
                    UnixServer(self._callee, self._token, self._dumps)
                    if here
                    else FlightServer(self._callee, self._token, self._host, self._dumps)
                )
            return self._servers[here].address

    def close(self) -> None:
        """Close the servers."""
        with self._lock:
            for each in self._servers.values():
                each.close()
