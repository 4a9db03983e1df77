"""Calls of Ray's actors, which have the shards (ray_actors). Only these modules import Ray, on first use.

Ray neither restarts a process nor repeats a call. Thread-safe.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kvemb.cluster.local import failed
from kvemb.cluster.pieces import MAX_BYTES, PIECE_BYTES, SplitValue, pieces_of
from kvemb.cluster.ray_answers import Answer, cause_of
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install

# The concurrency group of an actor's pings, which has its own thread.
PINGS = "pings"
# How long closing a cluster waits for shards to delete their files.
CLOSE_SECONDS = 20
# Calls with many rows, and without user-defined functions, which plain pickling refuses.
_IN_PIECES = ("lookup", "change", "put_part")
_CONNECT_SECONDS = 5


def ray_package() -> Any:
    """Return the module ray. Raises BackendUnavailable."""
    try:
        import ray
    except ImportError as error:
        raise BackendUnavailable(
            f"shards on Ray need the package ray: {error}; install: {pip_install('cluster')}, or open the cluster "
            "with transport='local'"
        ) from error
    return ray


def ray_here() -> Any:
    """Return the module ray, connected to a Ray cluster. Raises BackendUnavailable.

    Unless ray.init() was called, connects to the cluster that RAY_ADDRESS names, or that runs on this machine.
    """
    ray = ray_package()
    if not ray.is_initialized():
        try:
            _reach(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise BackendUnavailable(
                f"no Ray cluster can be reached: {str(error).rstrip('.')}; first call ray.init(), which starts one on "
                "this machine, or ray.init(address=...), which connects to one"
            ) from error
    return ray


def _reach(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT, where Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            raise OSError(f"RAY_ADDRESS is {address}: {error}") from error


class RayTransport:
    """See kvemb.cluster.transport. actors: the shards, by number, or the coordinator. Can be pickled."""

    def __init__(self, actors: list[Any]) -> None:
        self._ray = ray_here()
        self.actors, self.shards = actors, len(actors)

    @property
    def address(self) -> str:
        """The address of this process's node, as Ray knows it."""
        return str(self._ray.util.get_node_ip_address())

    def __reduce__(self) -> tuple[Any, ...]:
        return RayTransport, (self.actors,)

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """See Transport."""
        actor = self.actors[shard]
        if name in _IN_PIECES and (split := SplitValue((name, arguments))).nbytes <= MAX_BYTES:
            answers = pieces_of(sum(read.nbytes for read in arguments[1])) if name == "lookup" else 0
            pieces = split.pieces(-(-split.nbytes // PIECE_BYTES))
            call = actor.call_in_pieces.options(num_returns=1 + answers) if answers else actor.call_in_pieces
            return self._answer(lambda: call.remote(answers, *pieces))
        return self._answer(lambda: actor.call.remote(name, arguments))

    def ping(self, shard: int) -> Future[Any]:
        """See Transport. The actor answers in a separate thread."""
        return self._answer(lambda: self.actors[shard].ping.options(concurrency_group=PINGS).remote())

    def _answer(self, call: Callable[[], Any]) -> Future[Any]:
        try:
            return Answer(self._ray, call())
        except self._ray.exceptions.RayError as error:
            return failed(cause_of(error))

    def close(self) -> None:
        """See Transport. REQUIRES: a coordinator was called to close before."""
        closed = [actor.call.remote("close", ()) for actor in self.actors]
        self._ray.wait(closed, num_returns=len(closed), timeout=CLOSE_SECONDS)
        for actor in self.actors:
            self._ray.kill(actor)
