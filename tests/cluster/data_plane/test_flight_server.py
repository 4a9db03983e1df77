"""The port for other nodes: garbage, connections that are slow or half open, and callers without the token."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pyarrow
import pytest
from callee import HOST, TOKEN, answers
from pyarrow import flight

from kvemb.cluster.data_plane import flight_parts
from kvemb.cluster.data_plane.encoding import Message
from kvemb.cluster.data_plane.flight_client import FlightChannel
from kvemb.cluster.data_plane.flight_server import FlightServer
from kvemb.threads.pool import Threads

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
def server(callee):
    server = FlightServer(callee, TOKEN, HOST)
    yield server
    server.close()


def channel_to(server):
    return FlightChannel(server.address, TOKEN, Threads(2))


def test_garbage_and_connections_that_are_slow_or_half_open_stop_nobody(server, callee):
    port = int(server.address.rpartition(":")[2])
    said = [b"", b"\0" * 5000, b"GET / HTTP/1.1\r\n\r\n", PREFACE, PREFACE[:9], PREFACE + b"\0\0\4\1", b"\x16\3\1\2\0"]
    opened = []
    for number in range(70):
        opened.append(socket.create_connection((HOST, port), 60))
        opened[-1].sendall(said[number % len(said)])
    for number in range(3):
        assert answers(channel_to(server), number)
    for each in opened[::2]:
        each.shutdown(socket.SHUT_WR)  # half open
    assert answers(channel_to(server))
    for each in opened:
        each.close()
    assert callee.calls == ["echo"] * 4


def test_the_port_is_that_of_one_address(server):
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", int(server.address.rpartition(":")[2])), 60)


def stream(server, headers):
    client = flight.connect(server.address, generic_options=[("grpc.enable_http_proxy", 0)])
    options = flight.FlightCallOptions(headers=headers)
    return client, *client.do_exchange(flight.FlightDescriptor.for_command(b""), options)


KNOWN = [(flight_parts.TOKEN.encode(), TOKEN.hex().encode())]


@pytest.mark.parametrize("headers", [[], [(KNOWN[0][0], b"")], [(KNOWN[0][0], b"74" * 31)], [(b"token", KNOWN[0][1])]])
def test_who_lacks_the_token_is_refused_before_a_message_is_read(server, callee, headers):
    def exchange():
        _client, writer, reader = stream(server, headers)
        try:
            writer.begin(flight_parts.schema())
            flight_parts.send(writer, Message(("echo", (1,))))
            reader.read_chunk()
        finally:
            writer.close()

    client = flight.connect(server.address)
    for call in (
        exchange,
        lambda: list(client.list_flights()),
        lambda: list(client.do_action(flight.Action("x", b""))),
    ):
        with pytest.raises(flight.FlightUnauthenticatedError, match="token is missing or wrong"):
            call()
    assert callee.calls == []
    assert answers(channel_to(server))


def of(nbytes):
    return nbytes.to_bytes(8, "little")


def batch(count):
    return pyarrow.record_batch([pyarrow.array(np.zeros(count, np.uint8))], schema=flight_parts.schema())


@pytest.mark.parametrize(
    ("count", "length"),
    [
        (5, None),
        (5, b"\0" * 8),
        (5, b"\4" + b"\0" * 7),
        (0, b"\4" + b"\0" * 7),
        (5, b"\377" * 8),
        (8, b"\10" + b"\0" * 7),
    ],
    ids=["no length", "none", "too long", "empty part", "huge", "no pickle"],
)
def test_a_stream_of_garbage_ends_and_the_others_go_on(server, callee, count, length):
    other = channel_to(server)
    _client, writer, reader = stream(server, KNOWN)
    writer.begin(flight_parts.schema())
    if length is None:
        writer.write_batch(batch(count))
    else:
        writer.write_with_metadata(batch(count), length)
    with pytest.raises((flight.FlightError, pyarrow.ArrowException)):
        reader.read_chunk()
    with pytest.raises((flight.FlightError, pyarrow.ArrowException)):
        writer.close()
    assert answers(other, 2)
    assert callee.calls == ["echo"]


def test_a_caller_that_stops_in_the_middle_of_a_message_stops_nobody(server, callee):
    _client, writer, reader = stream(server, KNOWN)
    writer.begin(flight_parts.schema())
    writer.write_with_metadata(batch(10), of(255))
    threads = [threading.Thread(target=answers, args=[channel_to(server), number]) for number in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert callee.calls == ["echo"] * 5
    reader.cancel()
    with pytest.raises((flight.FlightError, pyarrow.ArrowException)):
        writer.close()
