"""Ranks that connect to the first one, beside programs that send garbage, nothing, or the wrong token."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvemb.errors import RankLost
from kvemb.torch.connecting import accept, reach
from kvemb.torch.ranks import Ranks

NAMES = ["rank 0", "rank 4", "rank 5"]


@pytest.fixture
def server():
    """A listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_only_ranks_with_the_token_are_let_in(server):
    where = [*server.getsockname(), "token"]
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(accept, server, "token", NAMES, 60.0, 0.05)
        strangers = [socket.create_connection(where[:2]) for _ in range(4)]
        for stranger, garbage in zip(
            strangers, (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2[]", b"\0\0\0\2{}"), strict=False
        ):
            stranger.sendall(garbage)  # the last one sends nothing
        wrong = [reach([*where[:2], "another"], 1, 60.0, "rank 0"), reach(where, 3, 60.0, "rank 0")]
        ends = [Ranks(rank, NAMES, reach(where, rank, 60.0, "rank 0"), {}) for rank in (2, 1)]
        first = Ranks(0, NAMES, None, found.result(60))
        for stranger in [*strangers, *wrong]:
            stranger.close()
        answers = [pool.submit(ends[0].meet, lambda: {"is": 2}, None, 60.0)]
        with ThreadPoolExecutor(1) as other:
            answers.append(other.submit(ends[1].meet, lambda: {"is": 1}, None, 60.0))
            assert first.meet(dict, lambda messages: {"all": messages}, 60.0) == {"all": [{}, {"is": 1}, {"is": 2}]}
        assert answers[0].result(60) == answers[1].result(60)


def test_a_rank_that_does_not_come_is_named(server):
    where = [*server.getsockname(), "token"]
    came = reach(where, 1, 60.0, "rank 0")
    with pytest.raises(RankLost, match=r"^rank 5 did not come"):
        accept(server, "token", NAMES, 0.1)
    came.close()
    server.close()
    with pytest.raises(RankLost, match=r"^rank 0 cannot be reached at 127\.0\.0\.1 port"):
        reach(where, 1, 60.0, "rank 0")
