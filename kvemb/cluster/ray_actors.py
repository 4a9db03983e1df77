"""The actors of a cluster on Ray: a process for each shard, and one for the coordinator, which starts the others.

After a loss the coordinator replaces them; they end with it. ray_transport sends calls to them.
"""

from __future__ import annotations

import math
import os
import secrets
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import kvemb
from kvemb.checks.ranges import MAX_ROWS
from kvemb.cluster.calls import MAX_ATTEMPTS, Timeouts
from kvemb.cluster.coordination.starting import OpenRequest
from kvemb.cluster.coordination.starting import start as start_here
from kvemb.cluster.data_plane.served import Served
from kvemb.cluster.durability.folders import new_folder, probe
from kvemb.cluster.making import Plan
from kvemb.cluster.ray_answers import cause_of
from kvemb.cluster.ray_transport import CLOSE_SECONDS, PINGS, RayTransport, node_here, ray_here, ray_package
from kvemb.cluster.transport import Unanswered
from kvemb.errors import BackendUnavailable, ShardLost
from kvemb.progress import Meter

# Calls that one shard executes at the same time.
CONCURRENT_CALLS = 8
# A disk that has answered within this time counts as working.
PROBE_SECONDS = 1.0
# Timeouts for a shard that is being made: a node may have to be started for it.
WHEN_MADE = Timeouts(30.0, 270.0)
# Ray runs its workers with niceness 15. A trainer waits for its shards, and so must not run before them.
NICENESS = "RAY_worker_niceness"


class ShardActor:
    """A shard in its own process. folder: of its files; before it is made, their parent."""

    folder = Path(tempfile.gettempdir())
    _probed = -math.inf  # when its disk last answered

    def open(self, plan: Plan, number: int, scratch: str | None, token: bytes, coordinator: str) -> int:
        """Make the shard; returns its initial number of rows. scratch: a directory on this node; None: the system's
        temporary directory. token: what its data plane requires. coordinator: the coordinator's version of kvemb.
        Raises BackendUnavailable if this node has another.
        """
        _check_version(coordinator)
        if scratch is not None:
            self.folder = Path(scratch)
        rows = 0

        def count(done: int, total: int) -> None:
            nonlocal rows
            rows = done

        with ExitStack() as undo:
            self.folder = new_folder(self.folder, "kvemb-actor-", undo)
            self._shard = plan.make(number, self.folder, Meter(MAX_ROWS, count))
            self._undo = undo.pop_all()  # the folder is locked as long as this process lives
        ray = ray_package()
        host = ray.util.get_node_ip_address()
        self._served = Served(self._shard, token, node_here(ray), host, ray.cloudpickle.dumps)
        return rows

    def reach(self, node: str) -> str:
        """Return where clients on a node reach this shard with calls that have rows."""
        return self._served.reach(node)

    def ping(self) -> None:
        """Return once the disk has answered, now or less than PROBE_SECONDS ago.

        Pings run one after the other, and each client sends its own.
        """
        if time.monotonic() >= self._probed + PROBE_SECONDS:
            probe(self.folder)
            self._probed = time.monotonic()

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of the shard."""
        return self._shard.call(name, arguments)


class CoordinatorActor:
    """A coordinator in its own process."""

    def __init__(self) -> None:
        self._progress: tuple[int, int] | None = None

    def open(self, request: OpenRequest, scratch: str | None, client: str) -> None:
        """Start the coordinator. client: the version of kvemb in the process that opens the cluster."""
        _check_version(client)

        def progressed(done: int, total: int) -> None:
            self._progress = done, total

        self._coordinator = start_here(request, partial(_made_on_ray, request, scratch), progressed)

    def progress(self) -> tuple[int, int] | None:
        """Return the number of rows loaded, and of all rows to load; None: nothing is loaded yet."""
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
            f"a node has kvemb {kvemb.__version__}, but the program that opens the cluster has {other}; install the "
            "same version on all nodes"
        )


def _made_on_ray(request: OpenRequest, scratch: str | None, meter: Meter, plan: Plan) -> RayTransport:
    """Make the shards of a plan, on nodes that Ray chooses. scratch: see ShardActor.open. meter: counts rows.

    Tries again if a process ends meanwhile: Ray may have placed it on a lost node before noticing the loss.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        with suppress(Unanswered):
            return _made_once(request, scratch, meter, plan)
    try:
        return _made_once(request, scratch, meter, plan)
    except Unanswered as error:
        raise ended("a shard", error) from error


def _made_once(request: OpenRequest, scratch: str | None, meter: Meter, plan: Plan) -> RayTransport:
    ray = ray_here()
    _check_gpus(ray, request.gpus, plan.shards)
    how: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD", "num_cpus": 0}
    if NICENESS not in os.environ:  # whoever started Ray has not chosen
        how["runtime_env"] = {"env_vars": {NICENESS: "0"}}
    shard = ray.remote(concurrency_groups={PINGS: 1})(ShardActor)
    make = shard.options(max_concurrency=CONCURRENT_CALLS, num_gpus=request.gpus, **how)
    token = secrets.token_bytes(32)
    made = RayTransport([make.remote() for _ in range(plan.shards)], token)
    given = scratch, token, kvemb.__version__
    opened = [actor.open.remote(plan, number, *given) for number, actor in enumerate(made.actors)]
    try:
        for number, rows in enumerate(opened):
            meter(_when_made(made, number, rows))
    except ray.exceptions.RayError as error:
        ray.wait(opened, num_returns=len(opened), timeout=CLOSE_SECONDS)  # the others also delete their files
        made.close()
        found = cause_of(error)
        raise found from found.__cause__
    except BaseException:
        made.close()
        raise
    return made


def _check_gpus(ray: Any, each: float, shards: int) -> None:
    """Raise BackendUnavailable if there are too few GPUs: Ray would wait for more."""
    there = ray.cluster_resources().get("GPU", 0)
    if each * shards > there:
        raise BackendUnavailable(
            f"{shards} shards need {each:g} GPUs each, but the Ray cluster has {there:g} in all; add nodes, or pass "
            "gpus=0 and no device_memory"
        )


def _when_made(made: RayTransport, number: int, rows: Any) -> int:
    """Wait for a shard that is being made while it answers pings; returns its number of rows."""
    ray = ray_package()
    while not ray.wait([rows], timeout=WHEN_MADE.silent)[0]:
        try:
            made.ping(number).result(WHEN_MADE.ping)
        except Unanswered:
            pass  # the result will soon say why
        except TimeoutError as error:
            seconds = WHEN_MADE.silent + WHEN_MADE.ping
            raise BackendUnavailable(
                f"shard {number} has not answered for {seconds:g} seconds: no node has the resources that it requests, "
                "or its disk hangs; check `ray status`, and scratch on the nodes"
            ) from error
    return int(ray.get(rows))


def ended(what: str, error: Unanswered) -> ShardLost:
    """Return the error for a process that was lost while the cluster was opened or recovered."""
    return ShardLost(f"{what} was lost while it was started: {error}; try again")
