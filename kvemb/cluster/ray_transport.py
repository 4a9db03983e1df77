"""Shards on Ray: one actor each, on a node of Ray's choice. Only this module uses Ray, imported on first use.

Ray neither restarts a shard's process nor repeats a call. After a loss the cluster is opened again, and all shards
return to the last checkpoint. Thread-safe.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.checks.ranges import MOST_ROWS
from kvemb.cluster.folders import delete, new_folder
from kvemb.cluster.making import Plan
from kvemb.cluster.transport import Unanswered
from kvemb.errors import BackendUnavailable, KvembError, Locked
from kvemb.meter import Meter

NAMESPACE = "kvemb"
# Calls that one shard runs at the same time.
CONCURRENT_CALLS = 8
# How long the end of a cluster waits for shards that delete their files.
CLOSE_SECONDS = 60


def ray_here() -> Any:
    """Return the module ray, connected to a Ray cluster. Raises BackendUnavailable.

    Connects to the cluster that RAY_ADDRESS names, or that runs on this machine, unless ray.init() was called.
    """
    try:
        import ray
    except ImportError as error:
        raise BackendUnavailable(
            f"shards on Ray need the package ray: {error}; install: pip install 'kvemb[cluster]', or open the cluster "
            "with transport='local'"
        ) from error
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
    """A shard in a process of its own."""

    def open(self, plan: Plan, number: int, scratch: str | None, client: str) -> int:
        """Make the shard; returns how many rows it begins with. scratch: a directory on this node; None: the system's
        temporary one. client: kvemb's version in the client. Raises BackendUnavailable if this node has another.
        """
        if client != kvemb.__version__:
            raise BackendUnavailable(
                f"a node has kvemb {kvemb.__version__}, and the program that opens the cluster {client}; install one "
                "version on all nodes"
            )
        root = Path(tempfile.gettempdir() if scratch is None else scratch)
        folder, lock = new_folder(root, "kvemb-shard-")
        rows = 0

        def count(done: int, total: int) -> None:
            nonlocal rows
            rows = done

        try:
            self._shard, self._lock = plan.make(number, folder, Meter(MOST_ROWS, count)), lock
        except BaseException:
            delete(folder, lock)
            raise
        return rows

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the shard."""
        return getattr(self._shard, name)(*_writable(arguments))


def _writable(value: Any) -> Any:
    """Return arguments with writable arrays: those from Ray are read-only, in shared memory."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_writable, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_writable, value))
    return value


class _Owner:
    """An actor whose name marks a url as open; it ends with the process that made it."""


class RayTransport:
    """See kvemb.cluster.transport. actors: the shards, by number.

    scratch: see ShardActor.open. meter: counts the rows that shards begin with. Raises what making a
    shard raises; Locked if the url is open as a cluster.
    """

    def __init__(self, plan: Plan, scratch: str | None, meter: Meter) -> None:
        self._ray = ray_here()
        self.shards = plan.shards
        self._owner = self._claim(plan.url)
        never = {"max_restarts": 0, "max_task_retries": 0}
        placed = {"scheduling_strategy": "SPREAD", "num_cpus": 0}
        make = self._ray.remote(ShardActor).options(max_concurrency=CONCURRENT_CALLS, **never, **placed)
        self.actors = [make.remote() for _ in range(plan.shards)]
        opened = [
            actor.open.remote(plan, number, scratch, kvemb.__version__) for number, actor in enumerate(self.actors)
        ]
        try:
            for rows in opened:
                meter(self._ray.get(rows))
        except self._ray.exceptions.RayError as error:
            self.close()
            raise _cause(error) from None
        except BaseException:
            self.close()
            raise

    def _claim(self, url: str | None) -> Any:
        if url is None:
            return None
        owner = self._ray.remote(_Owner).options(name=f"cluster {url}", namespace=NAMESPACE, num_cpus=0)
        try:
            return owner.remote()
        except ValueError as error:
            raise Locked(f"the cluster at {url} is open elsewhere on this Ray cluster; close it there") from error

    def call(self, shard: int, name: str, *arguments: Any) -> Future[Any]:
        """See Transport."""
        answer: Future[Any] = Future()

        def arrived(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                answer.set_result(future.result())
            else:
                answer.set_exception(_cause(error))

        try:
            self.actors[shard].call.remote(name, arguments).future().add_done_callback(arrived)
        except self._ray.exceptions.RayError as error:
            answer.set_exception(_cause(error))
        return answer

    def close(self) -> None:
        """See Transport."""
        closed = [actor.call.remote("close", ()) for actor in self.actors]
        self._ray.wait(closed, num_returns=len(closed), timeout=CLOSE_SECONDS)
        for actor in [*self.actors, *([self._owner] if self._owner is not None else [])]:
            self._ray.kill(actor)


def _cause(error: BaseException) -> BaseException:
    """Return what a shard raised, or Unanswered where Ray lost the call."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return cause
    if isinstance(error, (KvembError, Unanswered)):
        return error
    return Unanswered(" ".join(str(error).split()))
