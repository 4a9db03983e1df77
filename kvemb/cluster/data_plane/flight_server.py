"""Takes calls of processes on other nodes, through Arrow Flight. A caller's stream has one call at a time.

The port is bound to one address of this node. A call without the token is refused before any of its bytes are read as a
message. gRPC has one thread for each stream, and none for connections that send no call.
"""

from __future__ import annotations

import hmac
import pickle
from contextlib import suppress
from typing import Any

from kvemb.cluster.data_plane import flight_parts
from kvemb.cluster.data_plane.serving import Dumps, answered
from kvemb.cluster.local import Callee


class FlightServer:
    """See the module. host: the address to which its port is bound. token: what callers must send. address: its own."""

    def __init__(self, callee: Callee, token: bytes, host: str, dumps: Dumps = pickle.dumps) -> None:
        from pyarrow import flight

        class _Known(flight.ServerMiddlewareFactory):  # type: ignore[misc]
            def start_call(self, info: Any, headers: Any) -> None:
                said = headers.get(flight_parts.TOKEN, [""])[0]
                if not hmac.compare_digest(said.encode(), token.hex().encode()):
                    raise flight.FlightUnauthenticatedError("the cluster's token is missing or wrong")

        class _Exchange(flight.FlightServerBase):  # type: ignore[misc]
            def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
                writer.begin(flight_parts.schema())
                with suppress(StopIteration):  # the caller has ended the stream
                    while True:
                        answer, rest = answered(callee, flight_parts.receive(reader), dumps)
                        try:
                            flight_parts.send(writer, answer)
                        finally:
                            if rest is not None:
                                rest()

        name = f"[{host}]" if ":" in host else host
        self._server: Any = _Exchange(f"{flight_parts.SCHEME}{name}:0", middleware={"token": _Known()})
        self.address = f"{flight_parts.SCHEME}{name}:{self._server.port}"

    def close(self) -> None:
        """Take no more calls, and close all connections. Idempotent."""
        self._server.shutdown()
