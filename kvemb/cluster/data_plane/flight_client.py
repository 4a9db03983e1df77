"""A channel to a shard on another node, through Arrow Flight."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from kvemb.cluster.data_plane import flight_parts
from kvemb.cluster.data_plane.channel import Channel, Keeper, unanswered, unconnected
from kvemb.cluster.data_plane.encoding import Message
from kvemb.cluster.data_plane.serving import outcome
from kvemb.threads.pool import Threads


class FlightChannel(Channel):
    """See Channel. address: of a FlightServer. threads: those in which calls wait. Raises Unanswered."""

    def __init__(self, address: str, token: bytes, threads: Threads) -> None:
        import pyarrow
        from pyarrow import flight

        self._errors = (pyarrow.ArrowException, OSError, StopIteration, ValueError)
        self._threads = threads
        try:
            # A proxy for the Internet is not one for the nodes of a cluster.
            self._client = flight.connect(address, generic_options=[("grpc.enable_http_proxy", 0)])
            options = flight.FlightCallOptions(headers=[(flight_parts.TOKEN.encode(), token.hex().encode())])
            self._writer, self._reader = self._client.do_exchange(flight.FlightDescriptor.for_command(b""), options)
            self._writer.begin(flight_parts.schema())
        except self._errors as error:
            raise unconnected(error) from error

    def call(self, message: Message, keeper: Keeper) -> Future[Any]:
        return self._threads.submit(self.exchange, message, keeper)

    def exchange(self, message: Message, keeper: Keeper) -> Any:
        try:
            flight_parts.send(self._writer, message)
            answer = flight_parts.receive(self._reader)
        except self._errors as error:
            keeper.broken(self)
            raise unanswered(error) from error
        keeper.release(self)
        failed, result = outcome(answer)
        if failed:
            raise result
        return result

    def ready(self) -> bool:
        return True  # another call waits in the stream until the one before is done

    def close(self) -> None:
        for end in (self._reader.cancel, self._writer.close, self._client.close):
            with suppress(*self._errors):  # it is broken, or closed already
                end()

    def __del__(self) -> None:
        if hasattr(self, "_writer"):
            self.close()
