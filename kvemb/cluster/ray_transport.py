"""Calls of Ray's actors, which have the shards (ray_actors). Only these modules import Ray, on first use.

Calls with rows take the data plane, all others Ray, which neither restarts a process nor repeats a call. Thread-safe.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from kvemb.cluster.data_plane.links import Link
from kvemb.cluster.ray_answers import Answer, cause_of
from kvemb.cluster.transport import WITH_ROWS, Transport, failed
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install
from kvemb.threads.pool import Threads

# The concurrency group of an actor's pings, which has its own thread.
PINGS = "pings"
# How long closing a cluster waits for shards to delete their files, and for those that have not done so in the first of
# these seconds to answer a ping: a process that is stopped answers none.
CLOSE_SECONDS, PING_SECONDS = 20, 2
# Threads in which calls wait that the data plane cannot send at once; further ones wait for a thread.
_MAX_THREADS = 1024
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


# Ray tells why it refuses a program without the token only in the log of its C++ part.
TOKEN_ADVICE = (
    "if its head was started with a token, copy ~/.ray/auth_token from there to this machine and set "
    "RAY_AUTH_MODE=token"
)
_START_ADVICE = (
    "first call ray.init(), which starts one on this machine, or ray.init(address=...), which connects to one"
)


def ray_here() -> Any:
    """Return the module ray, connected to a Ray cluster. Raises BackendUnavailable.

    Unless ray.init() was called, connects to the cluster that RAY_ADDRESS names, or that runs on this machine.
    """
    ray = ray_package()
    if not ray.is_initialized():
        try:
            _try(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            refused = "Failed to connect" in str(error) and os.environ.get("RAY_AUTH_MODE", "").lower() != "token"
            advice = TOKEN_ADVICE if refused else _START_ADVICE
            text = f"no Ray cluster can be reached: {str(error).rstrip('.')}; {advice}"
            raise BackendUnavailable(text) from error
    return ray


def node_here(ray: Any) -> str:
    """Return the identity of this process's node."""
    return str(ray.get_runtime_context().get_node_id())


def _try(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT, where Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            raise OSError(f"RAY_ADDRESS is {address}: {error}") from error


class RayTransport(Transport):
    """See kvemb.cluster.transport. actors: the shards, by number, or the coordinator. Can be pickled.

    token: what the shards' data plane requires. node: the identity of this process's node.
    """

    def __init__(self, actors: list[Any], token: bytes = b"") -> None:
        self._ray = ray_here()
        self.node = node_here(self._ray)
        self.actors, self.shards, self._token = actors, len(actors), token
        threads = Threads(_MAX_THREADS, thread_name_prefix="kvemb-link")
        self._links = [Link(partial(self._reach, actor), token, threads) for actor in actors]

    @property
    def address(self) -> str:
        """The address of this process's node, as Ray knows it."""
        return str(self._ray.util.get_node_ip_address())

    def __reduce__(self) -> tuple[Any, ...]:
        return RayTransport, (self.actors, self._token)

    def _reach(self, actor: Any) -> str:
        """Ask a shard where this process reaches it. Raises Unanswered."""
        try:
            return str(self._ray.get(actor.reach.remote(self.node)))
        except self._ray.exceptions.RayError as error:
            found = cause_of(error)
            raise found from found.__cause__

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        if name in WITH_ROWS:
            return self._links[shard].call(name, arguments)
        return self._answer(lambda: self.actors[shard].call.remote(name, arguments))

    def ping(self, shard: int) -> Future[Any]:
        """Ask the actor, which answers in a separate thread: Transport.ping."""
        return self._answer(lambda: self._ping(shard))

    def _ping(self, shard: int) -> Any:
        return self.actors[shard].ping.options(concurrency_group=PINGS).remote()

    def _answer(self, call: Callable[[], Any]) -> Future[Any]:
        try:
            return Answer(self._ray, call())
        except self._ray.exceptions.RayError as error:
            return failed(cause_of(error))

    def close(self) -> None:
        """End the actors: Transport.close. REQUIRES: a coordinator was called to close before."""
        closing = {actor.call.remote("close", ()): shard for shard, actor in enumerate(self.actors)}
        _, late = self._ray.wait(list(closing), num_returns=len(closing), timeout=PING_SECONDS)
        pings = {self._ping(closing[each]): each for each in late}
        if pings:
            answering, _ = self._ray.wait(list(pings), num_returns=len(pings), timeout=PING_SECONDS)
            waiting = [pings[each] for each in answering]
            if waiting:
                self._ray.wait(waiting, num_returns=len(waiting), timeout=CLOSE_SECONDS)
        for link in self._links:
            link.close()
        for actor in self.actors:
            self._ray.kill(actor)
