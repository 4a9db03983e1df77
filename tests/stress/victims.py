"""Processes of `python tests/stress cluster` that are killed: clients, and ranks that take their steps together."""

from __future__ import annotations

import multiprocessing
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import kvemb
import kvemb.cluster
from kvemb.cluster import ray_transport
from kvemb.cluster.cluster import StepPart
from kvemb.cluster.in_step.client import RankClient, RankPart
from kvemb.handle import inside
from stress.groups import GROUPS, KEYS, NAME, RANKS, gradients, table_of
from stress.lockstep import Difference
from stress.traps import MAX_PASSED, spring

# A process whose trap has not ended it by then never comes to it.
MAX_SECONDS = 30.0


class Victims:
    """Starts them. address: of Ray. url: of the cluster."""

    def __init__(self, address: str, url: str) -> None:
        self._cluster = address, url
        self._spawn = multiprocessing.get_context("spawn")

    def kill_client(self, store: kvemb.cluster.Store, point: str | None, chance: Any) -> bool:
        """Kill a client during its calls, at a point of traps.OF_CLIENTS, or at any instant; returns False."""
        seed, after = int(chance.integers(1 << 30)), int(chance.integers(MAX_PASSED))
        with self._killed(store, _make_calls, seed, point, after) as (process, pipe):
            with suppress(EOFError):
                pipe.recv()
            if point is None:
                time.sleep(float(chance.random()) * 0.2)
            else:
                _check_end(process, point)
        return False

    def kill_rank(self, store: kvemb.cluster.Store, point: str, chance: Any) -> bool:
        """Kill one of two ranks during their steps, at a point of traps.OF_CLIENTS; returns False."""
        group, after, dies = uuid.uuid4().hex, int(chance.integers(MAX_PASSED)), int(chance.integers(RANKS))
        points = [point if rank == dies else None for rank in range(RANKS)]
        with (
            self._killed(store, _take_part, group, 0, points[0], after) as first,
            self._killed(store, _take_part, group, 1, points[1], after) as second,
        ):
            ranks = first, second
            pipes, until = [pipe for _, pipe in ranks], time.monotonic() + MAX_SECONDS
            with suppress(EOFError, OSError):  # one has died
                for pipe in pipes:
                    pipe.recv()
                while time.monotonic() < until:
                    _step(pipes, int(chance.integers(GROUPS)))
            _check_end(ranks[dies][0], point)
        return False

    @contextmanager
    def _killed(
        self, store: kvemb.cluster.Store, work: Callable[..., None], *given: Any
    ) -> Iterator[tuple[Any, Connection]]:
        """Run work in a process, which is killed at the end of the block; yields it, and a pipe to it."""
        mine, its = self._spawn.Pipe()
        clients = store.variables[NAME].dim - 2
        process = self._spawn.Process(target=work, args=(*self._cluster, clients, its, *given), daemon=True)
        process.start()
        its.close()
        try:
            yield process, mine
        finally:
            process.kill()
            process.join()
            mine.close()


def _check_end(process: Any, point: str) -> None:
    """Wait until a trap has ended a process. Raises Difference."""
    process.join(MAX_SECONDS)
    if process.exitcode != -signal.SIGKILL:
        raise Difference(f"a process did not end where it should, {point}: {process.exitcode}")


def _step(pipes: list[Connection], group: int) -> None:
    """Let ranks take a step on a group of keys. Raises EOFError, OSError if one has died."""
    for pipe in pipes:
        pipe.send(group)
    put: list[tuple[int, list[int]]] = [pipe.recv() for pipe in pipes]
    parts = [RankPart(rank, number, shards, [1.0]) for rank, (number, shards) in enumerate(put)]
    pipes[0].send(parts)
    pipes[0].recv()


def _connected(address: str, url: str, clients: int) -> tuple[kvemb.cluster.Store, kvemb.Variable]:
    ray_transport.ray_package().init(address=address, log_to_driver=False)
    store = kvemb.cluster.connect(url)
    return store, table_of(store, clients)


def _make_calls(
    address: str, url: str, clients: int, pipe: Connection, seed: int, point: str | None, after: int
) -> None:
    """Make calls until this process is killed; sends a message when it begins."""
    _, table = _connected(address, url, clients)
    chance = np.random.default_rng(seed)
    pipe.send(None)
    if point is not None:
        spring(point, after)
    while True:
        keys = KEYS[chance.integers(GROUPS)]
        table.lookup(keys)
        table.apply_gradients(keys, gradients(clients, table.dim))


def _take_part(
    address: str, url: str, clients: int, pipe: Connection, group: str, rank: int, point: str | None, after: int
) -> None:
    """Be a rank until this process is killed: put parts, and take the steps of both if this is the first rank."""
    store, table = _connected(address, url, clients)
    client = RankClient(inside(store), [inside(table)], group, rank)
    pipe.send(None)
    if point is not None:
        spring(point, after)
    while True:
        keys = KEYS[pipe.recv()]
        pipe.send(client.put([StepPart(inside(table), keys, gradients(clients + 1, table.dim))]))
        if rank == 0:
            pipe.send(client.step(pipe.recv(), [0]))
