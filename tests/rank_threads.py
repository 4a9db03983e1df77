"""Ranks that are threads of this process, each a client of one cluster, with the channel that processes have, too."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

import kvemb.cluster
from kvemb.handle import inside
from kvemb.torch import in_step
from kvemb.torch.connecting import accept, reach
from kvemb.torch.ranks import Ranks


class Group:
    """A group of torch.distributed, as one rank has it. mean: averages tensors over the ranks, as DDP does."""

    def __init__(self, ranks: Ranks, meeting: threading.Barrier, board: dict[int, Any]) -> None:
        self.ranks, self.meeting, self._board = ranks, meeting, board

    def mean(self, parameters: list[torch.Tensor]) -> None:
        """Replace gradients by their mean over the ranks."""
        self._board[self.ranks.rank] = [each.grad / self.ranks.size for each in parameters]
        self.meeting.wait()
        for at, each in enumerate(parameters):
            each.grad = sum(self._board[rank][at] for rank in range(self.ranks.size))
        self.meeting.wait()


def channels(size: int, timeout: float = 60.0) -> list[Ranks]:
    """Return each rank's end of a channel."""
    names, token, ends = [f"rank {rank}" for rank in range(size)], secrets.token_hex(8), dict[int, Ranks]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = [*server.getsockname()[:2], token]
        for rank in range(1, size):
            ends[rank] = Ranks(rank, names, reach(where, rank, timeout, names[0]), {})
        ends[0] = Ranks(0, names, None, accept(server, token, names, timeout))
    return [ends[rank] for rank in range(size)]


@contextmanager
def clients(store: kvemb.cluster.Store, url: Any, size: int, monkeypatch: Any) -> Any:
    """Yield the groups and the clients of ranks; the first one has opened the cluster."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: size if group else 1)
    monkeypatch.setattr(in_step, "connected", lambda group, address, timeout: group.ranks)
    stores = [store, *(kvemb.cluster.connect(url, transport="local") for _ in range(1, size))]
    for each in stores:
        monkeypatch.setattr(inside(each), "shared", True)
    meeting, board = threading.Barrier(size, timeout=60), dict[int, Any]()
    yield [Group(ranks, meeting, board) for ranks in channels(size)], stores
    for each in stores[1:]:
        each.close()


def run(work: Callable[..., Any], *given: list[Any]) -> list[Any]:
    """Call a function on one thread for each rank; returns the results, or exceptions."""
    with ThreadPoolExecutor(len(given[0])) as pool:
        futures = [pool.submit(work, *each) for each in zip(*given, strict=True)]
        return [future.exception() or future.result() for future in futures]
