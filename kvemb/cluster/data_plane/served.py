"""The data plane of one shard: its servers, each started when the first client asks for it."""

from __future__ import annotations

import pickle
import threading
from typing import Literal, NamedTuple

from kvemb.cluster.data_plane.flight_server import FlightServer
from kvemb.cluster.data_plane.segment import has_segments
from kvemb.cluster.data_plane.serving import Dumps, Server
from kvemb.cluster.data_plane.unix_server import UnixServer
from kvemb.cluster.local import Callee


class Address(NamedTuple):
    """Where a client reaches a shard, and how."""

    way: Literal["unix", "flight"]
    where: str


class Served:
    """See the module. node: the identity of this node. host: its address. token: what callers must send.

    Thread-safe.
    """

    def __init__(self, callee: Callee, token: bytes, node: str, host: str, dumps: Dumps = pickle.dumps) -> None:
        self._callee, self._token, self._node, self._host, self._dumps = callee, token, node, host, dumps
        self._servers: dict[str, Server] = {}
        self._lock = threading.Lock()

    def reach(self, node: str) -> Address:
        """Return where clients on a node reach this shard: through shared memory if it is this one."""
        if node == self._node and has_segments():
            return Address("unix", self._server("unix").address)
        return Address("flight", self._server("flight").address)

    def _server(self, way: Literal["unix", "flight"]) -> Server:
        with self._lock:
            if way not in self._servers:
                self._servers[way] = (
                    UnixServer(self._callee, self._token, self._dumps)
                    if way == "unix"
                    else FlightServer(self._callee, self._token, self._host, self._dumps)
                )
            return self._servers[way]

    def close(self) -> None:
        """Close the servers."""
        with self._lock:
            for each in self._servers.values():
                each.close()
