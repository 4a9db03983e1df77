"""The exchange of a cluster's step alone: the data plane's messages, between this process and shards without a store.

It measures the inside of kvemb.cluster, and so imports it.
"""

from __future__ import annotations

import multiprocessing
import secrets
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import kvemb.cluster
from kvemb.cluster.data_plane.links import Link
from kvemb.cluster.data_plane.served import Served
from kvemb.handle import inside
from kvemb.threads.pool import Threads
from kvemb.tools.bench.data import Ids

HERE, ELSEWHERE, HOST = "here", "another node", "127.0.0.1"


class _Empty:
    """A shard that has no rows. It answers a lookup with zeros, and ignores gradients."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a call."""
        return np.zeros((len(arguments[0]), self._dim), np.float32) if name == "lookup" else None


def _serve(pipe: Connection, token: bytes, dim: int) -> None:
    served = Served(_Empty(dim), token, HERE, HOST)
    pipe.send((served.reach(HERE), served.reach(ELSEWHERE)))
    pipe.recv()


class Exchange:
    """The messages of a step, with the distinct keys evenly divided over processes without a store."""

    def __init__(self, shards: int, batches: list[Ids], dim: int) -> None:
        spawn, token = multiprocessing.get_context("spawn"), secrets.token_bytes(32)
        pipes = [spawn.Pipe() for _ in range(shards)]
        self._pipes = [mine for mine, _ in pipes]  # a process ends when its pipe does
        self._processes = [spawn.Process(target=_serve, args=(its, token, dim), daemon=True) for _, its in pipes]
        for each in self._processes:
            each.start()
        addresses = [mine.recv() for mine in self._pipes]
        threads = Threads(2 * shards)
        self._links = [[_link(each[way], token, threads) for each in addresses] for way in range(2)]
        self._parts = [np.array_split(np.unique(ids), shards) for ids in batches]
        self._grads = [[np.zeros((len(part), dim), np.float32) for part in parts] for parts in self._parts]

    def steps(self, flight: bool) -> None:
        """Exchange the messages of all steps. flight: through Arrow Flight; otherwise through shared memory."""
        links = self._links[flight]
        for parts, grads in zip(self._parts, self._grads, strict=True):
            for future in [link.call("lookup", (part,)) for link, part in zip(links, parts, strict=True)]:
                future.result()
            given = zip(parts, grads, strict=True)
            sent = [link.call("train", arguments) for link, arguments in zip(links, given, strict=True)]
            for future in sent:
                future.result()

    def close(self) -> None:
        """End the processes."""
        for link in [*self._links[0], *self._links[1]]:
            link.close()
        for each in self._processes:
            each.terminate()
            each.join()


def _link(address: str, token: bytes, threads: Threads) -> Link:
    return Link(lambda: address, token, threads)


def through_flight(store: kvemb.cluster.Store) -> None:
    """Make a client that has made no calls on rows reach its shards on Ray as if it were on another node."""
    transport: Any = inside(store).session.calls.transport
    transport.node = ELSEWHERE
