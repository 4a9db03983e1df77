"""Shards and a coordinator on Ray: one actor each. Only this module uses Ray, imported on first use.

Ray neither restarts a process nor repeats a call. The coordinator makes the shards' actors, and after a loss others in
their place; it is on the node of the process that opened the cluster, and ends with it, and the shards with it.
Thread-safe.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.checks.ranges import MOST_ROWS
from kvemb.cluster.coordination.starting import Asked
from kvemb.cluster.coordination.starting import start as start_here
from kvemb.cluster.folders import delete, new_folder
from kvemb.cluster.local import failed
from kvemb.cluster.making import Plan
from kvemb.cluster.pieces import MOST_BYTES, PIECE_BYTES, Apart, joined, pieces_of
from kvemb.cluster.ray_answers import Answer, cause_of
from kvemb.errors import BackendUnavailable, Locked
from kvemb.meter import Meter, Progress

NAMESPACE = "kvemb"
# Calls that one shard runs at the same time, and that the coordinator does: clients that wait there are among these.
CONCURRENT_CALLS, CONCURRENT_CLIENTS = 8, 64
# How long the end of a cluster waits for shards that delete their files.
CLOSE_SECONDS = 20
_PINGS = "pings"
# The calls that have many rows, and no function of the user's, which plain pickling does not take.
_IN_PIECES = ("lookup", "change")
# How often the progress of the opening is asked for.
_PROGRESS_SECONDS = 0.2


def ray_package() -> Any:
    """Return the module ray. Raises BackendUnavailable."""
    try:
        import ray
    except ImportError as error:
        raise BackendUnavailable(
            f"shards on Ray need the package ray: {error}; install: pip install 'kvemb[cluster]', or open the cluster "
            "with transport='local'"
        ) from error
    return ray


def ray_here() -> Any:
    """Return the module ray, connected to a Ray cluster. Raises BackendUnavailable.

    Connects to the cluster that RAY_ADDRESS names, or that runs on this machine, unless ray.init() was called.
    """
    ray = ray_package()
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except (ConnectionError, RuntimeError) as error:
            raise BackendUnavailable(
                f"no Ray cluster can be reached: {error}; call ray.init() before, to start one on this machine, or "
                "ray.init(address=...)"
            ) from error
    return ray


class ShardActor:
    """A shard in a process of its own. folder: of its files."""

    folder: Path

    def open(self, plan: Plan, number: int, scratch: str | None, coordinator: str) -> int:
        """Make the shard; returns how many rows it begins with. scratch: a directory on this node; None: the system's
        temporary one. coordinator: its version of kvemb. Raises BackendUnavailable if this node has another.
        """
        _check_version(coordinator)
        root = Path(tempfile.gettempdir() if scratch is None else scratch)
        self.folder, lock = new_folder(root, "kvemb-shard-")
        rows = 0

        def count(done: int, total: int) -> None:
            nonlocal rows
            rows = done

        try:
            self._shard, self._lock = plan.make(number, self.folder, Meter(MOST_ROWS, count)), lock
        except BaseException:
            delete(self.folder, lock)
            raise
        return rows

    def ping(self) -> None:
        """Answer."""

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the shard."""
        return self._shard.call(name, _writable(arguments))

    def call_in_pieces(self, answers: int, *pieces: bytes) -> Any:
        """The same of a name and arguments in pieces (kvemb.cluster.pieces).

        answers: in how many pieces the result is returned, beside its description; 0: as it is.
        """
        result = self.call(*joined(pieces))
        return Apart(result).pieces(answers) if answers else result


class CoordinatorActor:
    """A coordinator in a process of its own."""

    def __init__(self) -> None:
        self._progress: tuple[int, int] | None = None

    def open(self, asked: Asked, scratch: str | None, client: str) -> None:
        """Start the coordinator. client: the version of kvemb where the cluster is opened."""
        _check_version(client)

        def progressed(done: int, total: int) -> None:
            self._progress = done, total

        self._coordinator = start_here(asked, partial(_made_on_ray, scratch), progressed)

    def progress(self) -> tuple[int, int] | None:
        """Return how many rows are loaded, and of how many; None: nothing is loaded yet."""
        return self._progress

    def ping(self) -> None:
        """Answer."""

    def started(self) -> bool:
        """Whether clients may call it."""
        return hasattr(self, "_coordinator")

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the coordinator."""
        return self._coordinator.call(name, arguments)


def _check_version(other: str) -> None:
    if other != kvemb.__version__:
        raise BackendUnavailable(
            f"a node has kvemb {kvemb.__version__}, and the program that opens the cluster {other}; install one "
            "version on all nodes"
        )


def _writable(value: Any) -> Any:
    """Return arguments with writable arrays: those from Ray are read-only, in shared memory."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_writable, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_writable, value))
    return value


class RayTransport:
    """See kvemb.cluster.transport. actors: the shards, by number; or the coordinator. It can be pickled."""

    def __init__(self, actors: list[Any]) -> None:
        self._ray = ray_here()
        self.actors, self.shards = actors, len(actors)

    def __reduce__(self) -> tuple[Any, ...]:
        return RayTransport, (self.actors,)

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """See Transport."""
        actor = self.actors[shard]
        if name in _IN_PIECES and (apart := Apart((name, arguments))).nbytes <= MOST_BYTES:
            answers = pieces_of(sum(read.nbytes for read in arguments[1])) if name == "lookup" else 0
            pieces = apart.pieces(-(-apart.nbytes // PIECE_BYTES))
            call = actor.call_in_pieces.options(num_returns=1 + answers) if answers else actor.call_in_pieces
            return self._answer(lambda: call.remote(answers, *pieces))
        return self._answer(lambda: actor.call.remote(name, arguments))

    def ping(self, shard: int) -> Future[Any]:
        """See Transport. It has a thread of its own."""
        return self._answer(lambda: self.actors[shard].ping.options(concurrency_group=_PINGS).remote())

    def _answer(self, call: Callable[[], Any]) -> Future[Any]:
        try:
            return Answer(self._ray, call())
        except self._ray.exceptions.RayError as error:
            return failed(cause_of(error))

    def close(self) -> None:
        """See Transport. A coordinator is to be told to close before."""
        closed = [actor.call.remote("close", ()) for actor in self.actors]
        self._ray.wait(closed, num_returns=len(closed), timeout=CLOSE_SECONDS)
        for actor in self.actors:
            self._ray.kill(actor)


def _made_on_ray(scratch: str | None, meter: Meter, plan: Plan) -> RayTransport:
    """Make the shards of a plan, on nodes of Ray's choice. scratch: see ShardActor.open. meter: counts rows."""
    ray = ray_here()
    how = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD", "num_cpus": 0}
    shard = ray.remote(concurrency_groups={_PINGS: 1})(ShardActor)
    make = shard.options(max_concurrency=CONCURRENT_CALLS, **how)
    made = RayTransport([make.remote() for _ in range(plan.shards)])
    opened = [actor.open.remote(plan, number, scratch, kvemb.__version__) for number, actor in enumerate(made.actors)]
    try:
        for rows in opened:
            meter(ray.get(rows))
    except ray.exceptions.RayError as error:
        ray.wait(opened, num_returns=len(opened), timeout=CLOSE_SECONDS)  # the others delete their files, too
        made.close()
        raise cause_of(error) from None
    except BaseException:
        made.close()
        raise
    return made


def start(asked: Asked, scratch: str | None, progress: Progress | None) -> RayTransport:
    """Start a coordinator; returns the way to it. Raises as kvemb.cluster.coordination.starting.start does."""
    ray = ray_here()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    how = {"max_concurrency": CONCURRENT_CLIENTS, "num_cpus": 0, "scheduling_strategy": here}
    if asked.url is not None:
        how |= {"name": _name(asked.url), "namespace": NAMESPACE}
    try:
        actor = ray.remote(concurrency_groups={_PINGS: 1})(CoordinatorActor).options(**how).remote()
    except ValueError as error:
        raise Locked(f"the cluster at {asked.url} is open elsewhere on this Ray cluster; close it there") from error
    way = RayTransport([actor])
    opened = actor.open.remote(asked, scratch, kvemb.__version__)
    try:
        while not ray.wait([opened], timeout=_PROGRESS_SECONDS)[0]:
            if progress is not None and (found := ray.get(actor.progress.remote())) is not None:
                progress(*found)
        if progress is not None and (found := ray.get(actor.progress.remote())) is not None:
            progress(*found)
        ray.get(opened)
    except ray.exceptions.RayError as error:
        ray.kill(actor)
        raise cause_of(error) from None
    except BaseException:
        ray.kill(actor)
        raise
    return way


def find(url: str) -> RayTransport | None:
    """Return the way to the coordinator of the cluster that has a url open; None if this Ray cluster has none."""
    ray = ray_here()
    try:
        actor = ray.get_actor(_name(url), namespace=NAMESPACE)
        return RayTransport([actor]) if ray.get(actor.started.remote()) else None
    except (ValueError, ray.exceptions.RayError):
        return None


def _name(url: str) -> str:
    return f"cluster {url}"
