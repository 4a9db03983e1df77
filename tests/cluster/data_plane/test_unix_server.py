"""Who is killed in the middle of a message, sends garbage or nothing: no other caller notices, and nothing is left."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from callee import TOKEN, answers
from waiting import wait_until

from kvemb.cluster.data_plane.encoding import Message
from kvemb.cluster.data_plane.segment import Segment, created
from kvemb.cluster.data_plane.unix_client import UnixChannel
from kvemb.cluster.data_plane.unix_peer import CALL, UnixPeer
from kvemb.cluster.data_plane.unix_server import UnixServer


@pytest.fixture
def server(callee):
    """A server that waits half a second for a greeting."""
    server = UnixServer(callee, TOKEN, greeting_seconds=0.5)
    yield server
    server.close()


def connected(server):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    connection.connect(f"\0{server.address}")
    return connection


def segments():
    """How many segments this process has mapped, and how many files it has open. None has a name in /dev/shm."""
    gc.collect()  # what earlier tests left
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:kvemb" in line]
    return len(mapped), len(os.listdir("/proc/self/fd"))


def nothing_is_left_since(before):
    return all(now <= then for now, then in zip(segments(), before, strict=True))


def test_a_message_that_was_not_finished_is_never_read(server, callee):
    before = segments()
    peer = UnixPeer(connected(server))
    peer.greet(TOKEN)
    assert peer.greeted(b"")
    message = Message(("echo", (np.arange(1000),)))
    half = peer._own.part(message.nbytes)
    message.write(half)
    half[message.nbytes // 2 :] = 0
    del half
    peer.close()  # as the kernel does when the process is killed
    del peer
    wait_until(lambda: not server._open)
    assert callee.calls == []
    assert answers(UnixChannel(server.address, TOKEN))
    wait_until(lambda: not server._open)
    wait_until(lambda: nothing_is_left_since(before))


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", TOKEN, b"x" * 200], ids=["nothing", "garbage", "no segment", "long"]
)
def test_who_greets_wrongly_or_not_at_all_is_sent_away(server, callee, said):
    connection = connected(server)
    if said:
        connection.send(said)
    assert answers(UnixChannel(server.address, TOKEN))
    assert connection.recv(100) == b"", "the server has closed the connection"
    connection.close()
    assert callee.calls == ["echo"]


def test_a_segment_that_could_shrink_and_frames_of_garbage_end_the_connection(server, callee):
    connection = connected(server)
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, 8 << 20)
    socket.send_fds(connection, [TOKEN], [loose])
    assert connection.recv(100) == b""
    connection.close()
    with pytest.raises(ValueError, match="not sealed"):
        Segment(loose)
    os.close(loose)
    for frame in (b"\0", b"\7" * 9, bytes([CALL]) + (1 << 50).to_bytes(8, "little"), bytes([2]) + bytes(8)):
        connection, segment = connected(server), created(8 << 20)
        socket.send_fds(connection, [TOKEN], [segment])
        os.close(segment)
        _, (answer, *_), *_ = socket.recv_fds(connection, 100, 1)
        os.close(answer)
        connection.send(frame)
        assert connection.recv(100) == b""
        connection.close()
    wait_until(lambda: not server._open)
    assert answers(UnixChannel(server.address, TOKEN))
    assert callee.calls == ["echo"]


CLIENT = """
import sys, numpy as np
from kvemb.cluster.data_plane.links import Link
from kvemb.threads.pool import Threads
link = Link(lambda: sys.argv[1], bytes.fromhex(sys.argv[2]), Threads(4))
array = np.arange(1_000_000)
while True:
    assert (link.call("echo", (array,)).result()[0] == array).all()
    print("called", flush=True)
"""


@pytest.mark.slow
def test_clients_that_are_killed_in_the_midst_of_messages_leave_nothing(server, callee):
    before = segments()
    for _ in range(5):
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, server.address, TOKEN.hex()], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3):
            assert client.stdout.readline() == "called\n"
        client.send_signal(signal.SIGKILL)
        client.communicate()
    wait_until(lambda: not server._open)
    assert set(callee.calls) == {"echo"}
    wait_until(lambda: nothing_is_left_since(before))
