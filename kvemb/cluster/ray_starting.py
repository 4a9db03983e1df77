"""Starts the coordinator of a cluster on Ray, and finds it by the url, from which its name there is made.

The coordinator is on the node of the process that opened the cluster, and ends with that process.
"""

from __future__ import annotations

import time
from typing import Any

import kvemb
from kvemb.cluster.calls import TIMEOUTS
from kvemb.cluster.coordination.starting import OpenRequest
from kvemb.cluster.ray_actors import CoordinatorActor, ended
from kvemb.cluster.ray_answers import cause_of
from kvemb.cluster.ray_transport import PINGS, RayTransport, ray_here
from kvemb.cluster.transport import Unanswered
from kvemb.errors import Locked
from kvemb.masking import masked
from kvemb.progress import Progress

NAMESPACE = "kvemb"
# Calls that the coordinator executes at the same time, including those of waiting clients.
CONCURRENT_CLIENTS = 64
# How long start() waits until the name of a coordinator that has ended is free.
_NAME_SECONDS = 20
# Interval at which the progress of opening is asked for.
_PROGRESS_SECONDS = 0.2


def start(request: OpenRequest, scratch: str | None, progress: Progress | None) -> RayTransport:
    """Start a coordinator; returns the transport to it. Raises as kvemb.cluster.coordination.starting.start does."""
    ray = ray_here()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    how = {"max_concurrency": CONCURRENT_CLIENTS, "num_cpus": 0, "scheduling_strategy": here}
    if request.url is not None:
        how |= {"name": _name(request.url), "namespace": NAMESPACE}
    make = ray.remote(concurrency_groups={PINGS: 1})(CoordinatorActor).options(**how)
    actor, deadline = None, time.monotonic() + _NAME_SECONDS
    while actor is None:
        try:
            actor = make.remote()
        except ValueError as error:
            # The name of a coordinator that has ended will soon be free.
            if request.url is None or _lives(ray, request.url) or time.monotonic() >= deadline:
                text = f"the cluster at {masked(request.url)} is open elsewhere on this Ray cluster; close it there"
                raise Locked(text) from error
            time.sleep(_PROGRESS_SECONDS)
    way = RayTransport([actor])
    opened = actor.open.remote(request, scratch, kvemb.__version__)
    try:
        is_open = False
        while not is_open:
            is_open = bool(ray.wait([opened], timeout=_PROGRESS_SECONDS)[0])
            if progress is not None and (found := ray.get(actor.progress.remote())) is not None:
                progress(*found)
        ray.get(opened)
    except ray.exceptions.RayError as error:
        ray.kill(actor)
        found = cause_of(error)
        if isinstance(found, Unanswered):
            raise ended("the coordinator", found) from found
        raise found from None
    except BaseException:
        ray.kill(actor)
        raise
    return way


def find(url: str) -> RayTransport | None:
    """Return the transport to the coordinator of the cluster that has a url open, None if this Ray cluster has none."""
    ray = ray_here()
    try:
        actor = ray.get_actor(_name(url), namespace=NAMESPACE)
        return RayTransport([actor]) if ray.get(actor.started.remote(), timeout=TIMEOUTS.ping) else None
    except (ValueError, ray.exceptions.RayError):
        return None


def _lives(ray: Any, url: str) -> bool:
    """Whether the coordinator of a url still runs, or hangs. If it has ended, this makes Ray release its name."""
    try:
        actor = ray.get_actor(_name(url), namespace=NAMESPACE)
        ray.get(actor.ping.options(concurrency_group=PINGS).remote(), timeout=TIMEOUTS.ping)
    except ray.exceptions.ActorDiedError:
        ray.kill(actor)
        return False
    except ray.exceptions.GetTimeoutError:
        return True
    except (ValueError, ray.exceptions.RayError):
        return False
    return True


def _name(url: str) -> str:
    return f"cluster {masked(url)}"  # everybody in the Ray cluster sees it
