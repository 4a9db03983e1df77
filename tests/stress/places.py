"""Clusters for `python tests/stress cluster`, in this process and on Ray, and the ways in which they lose shards.

On Ray, two nodes run on this machine: the first has the coordinator, and the second can be killed.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import kvemb
import kvemb.cluster
from kvemb.cluster import ray_starting, ray_transport
from kvemb.cluster.calls import Calls
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.coordination.starting import OpenRequest, start
from kvemb.cluster.local import DirectTransport, LocalTransport, make_in_process
from kvemb.cluster.messages import ChangeRequest
from kvemb.cluster.transport import GateClosed, Unanswered, failed
from kvemb.handle import inside
from stress.groups import GROUPS, KEYS, NAME, gradients
from stress.traps import MAX_PASSED, OF_CLIENTS, OF_SHARDS, spring
from stress.victims import Victims

BUDGET = "4MiB"
# How long a cut waits here for the rest of a dead client's call; short, so that a round is short.
ABSENT_SECONDS = 1.0


class Place(ABC):
    """A cluster, in a folder. first: the client that opened it. losses: ways to lose a shard or a client, by name.

    A loss gets a random generator, and returns whether a shard was lost, so that all clients must get ShardLost.
    """

    transport: str
    first: kvemb.cluster.Store
    losses: dict[str, Callable[[Any], bool]]

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder, self.url, self.shards = folder, str(folder / "series"), shards

    @abstractmethod
    def client(self) -> kvemb.cluster.Store:
        """Return one more client."""

    @abstractmethod
    def close(self) -> None:
        """Close it, without a checkpoint."""

    @abstractmethod
    def _folder_of(self, shard: int) -> Path: ...

    def _request(self) -> OpenRequest:
        options = {"memory_budget": BUDGET}
        return OpenRequest(self.url, {}, self.shards, options, absent_seconds=ABSENT_SECONDS)

    def _drawn(self, chance: Any) -> int:
        return int(chance.integers(self.shards))

    def _remove_files(self, chance: Any) -> bool:
        """Remove a shard's folder at once, as if its disk were lost."""
        folder = self._folder_of(self._drawn(chance))
        shutil.rmtree(folder.rename(folder.with_name(f"gone-{uuid.uuid4().hex}")), ignore_errors=True)
        return True

    def _send_half(self, chance: Any) -> bool:
        """Send only one part of a call, as a client that is killed during a call does."""
        cluster, table = inside(self.first), inside(self.first.variables[NAME])
        keys, columns = KEYS[int(chance.integers(GROUPS))], table.schema.dim
        parts = dict(cluster.router.split(keys).positions())
        shard = int(chance.choice(list(parts)))
        token, clock, *_ = cluster.session.client_variable(table)
        calls = Calls(cluster.session.calls.transport)
        while cluster.session.calls.lost is None:
            with calls.stamped(parts) as stamp:
                sent = keys[parts[shard]], gradients(columns - 2, columns)[parts[shard]]
                change = ChangeRequest(token, "apply_gradients", sent, clock.now(None))
                try:
                    calls.transport.call(shard, "change", stamp, [change]).result()
                    break
                except GateClosed:  # for a checkpoint: no shard has executed it
                    time.sleep(0.001)
        return False


class EndableTransport:
    """A LocalTransport whose shards can be ended."""

    def __init__(self, transport: LocalTransport) -> None:
        self.transport, self.shards, self._ended = transport, transport.shards, set[int]()

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """See kvemb.cluster.transport."""
        if shard in self._ended:
            return failed(Unanswered("it has ended"))
        answer: Future[Any] = Future()

        def arrived(future: Future[Any]) -> None:
            if shard in self._ended:
                answer.set_exception(Unanswered("it has ended"))
            elif (error := future.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(future.result())

        self.transport.call(shard, name, *arguments).add_done_callback(arrived)
        return answer

    def ping(self, shard: int) -> Future[Any]:
        """See kvemb.cluster.transport."""
        return self.transport.ping(shard)

    def end(self, shard: int) -> None:
        """End a shard: no later call reaches it, and running calls get no answer."""
        self._ended.add(shard)

    def close(self) -> None:
        """See kvemb.cluster.transport."""
        self.transport.close()


class LocalPlace(Place):
    """A cluster in this process."""

    transport = "local"

    def __init__(self, folder: Path, shards: int) -> None:
        super().__init__(folder, shards)
        self.losses = {"shard": self._end_shard, "disk": self._remove_files, "half a call": self._send_half}
        self._coordinator = start(self._request(), self._make, None)
        self.first = self._client(owner=True)

    def _make(self, meter: Any, plan: Any) -> EndableTransport:
        self._mortal = EndableTransport(make_in_process(self.folder / "scratch", meter, plan))
        return self._mortal

    def client(self) -> kvemb.cluster.Store:
        return self._client(owner=False)

    def _client(self, *, owner: bool) -> kvemb.cluster.Store:
        return kvemb.cluster.Store(Cluster(DirectTransport(self._coordinator), "here"), series=True, owner=owner)

    def _end_shard(self, chance: Any) -> bool:
        self._mortal.end(self._drawn(chance))
        return True

    def _folder_of(self, shard: int) -> Path:
        return Path(self._mortal.transport.place) / f"shard-{shard:04d}"

    def close(self) -> None:
        self.first.close(flush=False)


def _node_of(actor: Any) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _on_actor(store: kvemb.cluster.Store, shard: int, function: Callable[[Any], Any]) -> Any:
    """Call a function in a shard's process, with the shard's actor as its argument."""
    actors: Any = inside(store).session.calls.transport
    return ray_transport.ray_package().get(actors.actors[shard].__ray_call__.remote(function), timeout=60)


def kill_process(store: kvemb.cluster.Store, shard: int) -> None:
    """Kill the process of a shard on Ray."""
    os.kill(_on_actor(store, shard, lambda _: os.getpid()), signal.SIGKILL)


class RayPlace(Place):
    """A cluster on Ray, started for it on this machine."""

    transport = "ray"

    def __init__(self, folder: Path, shards: int) -> None:
        super().__init__(folder, shards)
        ray = ray_transport.ray_package()
        nodes: Any = importlib.import_module("ray.cluster_utils")
        self._ray, self._nodes = ray, nodes.Cluster(initialize_head=True, head_node_args=_NODE)
        self._ray.init(address=self._nodes.address, log_to_driver=False)
        self._second = self._nodes.add_node(**_NODE)
        self.losses = {
            "process": self._kill_process,
            "disk": self._remove_files,
            "node": self._kill_node,
            "half a call": self._send_half,
            **{f"process, {point}": partial(self._spring, point) for point in OF_SHARDS},
        }
        way = ray_starting.start(self._request(), str(folder / "scratch"), None)
        self.first = kvemb.cluster.Store(Cluster(way, self.url, shared=True), series=True, owner=True)
        victims = Victims(self._nodes.address, self.url)
        self.losses["client"] = partial(victims.kill_client, self.first, None)
        for point in OF_CLIENTS:
            self.losses[f"client, {point}"] = partial(victims.kill_client, self.first, point)
            self.losses[f"rank, {point}"] = partial(victims.kill_rank, self.first, point)

    def client(self) -> kvemb.cluster.Store:
        return kvemb.cluster.connect(self.url)

    def _kill_process(self, chance: Any) -> bool:
        kill_process(self.first, self._drawn(chance))
        return True

    def _folder_of(self, shard: int) -> Path:
        folder: Path = _on_actor(self.first, shard, lambda actor: actor.folder)
        return folder

    def _kill_node(self, chance: Any) -> bool:
        there = self._second.node_id
        has_shards = there in [_on_actor(self.first, shard, _node_of) for shard in range(self.shards)]
        self._nodes.remove_node(self._second, allow_graceful=False)
        self._second = self._nodes.add_node(**_NODE)
        return has_shards

    def _spring(self, point: str, chance: Any) -> bool:
        after = int(chance.integers(MAX_PASSED))
        with suppress(self._ray.exceptions.ActorDiedError):  # it may end before it answers
            _on_actor(self.first, self._drawn(chance), lambda _: spring(point, after))
        return True

    def close(self) -> None:
        with suppress(Exception):
            self.first.close(flush=False)
        self._ray.shutdown()
        self._nodes.shutdown()


PLACES: dict[str, type[LocalPlace] | type[RayPlace]] = {"local": LocalPlace, "ray": RayPlace}
_NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
