"""Connects the ranks of a group to the first one, which listens at its node's address until all have come.

A connection must begin with a random token, which the ranks get through torch.distributed; others are closed.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from typing import Any

import torch

from kvemb.errors import RankLost
from kvemb.torch.ranks import Ranks, late, received, send

# How long a connection may take to say which rank it is of.
GREETING_SECONDS = 5.0


def connected(group: Any, address: str, timeout: float) -> Ranks:
    """Return the channel of a group of torch.distributed. All of its ranks must call this. Raises RankLost.

    address: the address of this process's node, at which other nodes reach it.
    """
    distributed = torch.distributed
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    names = [f"rank {distributed.get_global_rank(group, each)}" for each in range(size)]
    first = distributed.get_global_rank(group, 0)
    where: list[Any] = ["", 0, ""]
    if rank > 0:
        distributed.broadcast_object_list(where, src=first, group=group)
        return Ranks(rank, names, reach(where, rank, timeout, names[0]), {})
    with socket.create_server((address, 0), backlog=size) as server:
        where = [*server.getsockname()[:2], secrets.token_hex(16)]
        distributed.broadcast_object_list(where, src=first, group=group)
        return Ranks(rank, names, None, accept(server, where[2], names, timeout))


def reach(where: list[Any], rank: int, timeout: float, leader: str) -> socket.socket:
    """Connect to the first rank. where: its address, its port and the token that it expects. Raises RankLost."""
    try:
        connection = socket.create_connection((where[0], where[1]), timeout)
        _set_up(connection)
        send(connection, {"token": where[2], "rank": rank}, time.monotonic() + timeout)
    except OSError as error:
        raise RankLost(f"{leader} cannot be reached at {where[0]} port {where[1]}: {error}") from error
    return connection


def accept(
    server: socket.socket, token: str, names: list[str], timeout: float, greeting_seconds: float = GREETING_SECONDS
) -> dict[int, socket.socket]:
    """Return the connections of all ranks but the first. Those of others, without the token, are closed."""
    deadline, found = time.monotonic() + timeout, dict[int, socket.socket]()
    try:
        while len(found) < len(names) - 1:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            connection, _ = server.accept()
            rank = _greeted(connection, token, greeting_seconds)
            if rank is None or not 0 < rank < len(names) or rank in found:
                connection.close()
                continue
            _set_up(connection)
            found[rank] = connection
    except TimeoutError as error:
        for connection in found.values():
            connection.close()
        missing = " and ".join(name for rank, name in enumerate(names) if rank and rank not in found)
        raise RankLost(late(missing, timeout)) from error
    return found


def _greeted(connection: socket.socket, token: str, seconds: float) -> int | None:
    """Return the rank that a connection says it is of; None without the token."""
    try:
        greeting = received(connection, time.monotonic() + seconds, 4096)
        right = hmac.compare_digest(str(greeting.get("token")).encode(), token.encode())
        return int(greeting["rank"]) if right else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _set_up(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
