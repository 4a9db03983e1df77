"""Starts a coordinator in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvemb.cluster.calls import Timeouts
from kvemb.cluster.coordination.coordinator import Coordinator
from kvemb.cluster.coordination.cuts import ABSENT_SECONDS
from kvemb.cluster.durability.checkpointing import Checkpointing
from kvemb.cluster.durability.cluster_series import ClusterSeries
from kvemb.cluster.making import Plan
from kvemb.cluster.transport import Transport
from kvemb.masking import masked
from kvemb.progress import Meter, Progress

ANSWER_SECONDS = 300.0


@dataclass(frozen=True)
class OpenRequest:
    """The arguments of kvemb.cluster.open. Plain values, which are sent to other processes.

    url: None: no checkpoints. shards: None: as many as the checkpoint has. how: arguments of kvemb.open for a shard.
    gpus: those that each shard requests of Ray. answer_seconds: how long a shard may take for a call on rows.
    absent_seconds: how long a cut waits for the rest of a call (cuts). number: of the checkpoint to start from; None:
    the newest.
    """

    url: str | None
    options: dict[str, Any]
    shards: int | None
    how: dict[str, Any]
    gpus: float = 0.0
    answer_seconds: float = ANSWER_SECONDS
    absent_seconds: float = ABSENT_SECONDS
    number: int | None = None


def start(request: OpenRequest, make: Callable[[Meter, Plan], Transport], progress: Progress | None) -> Coordinator:
    """Start a coordinator and its shards, in the state of a checkpoint. make: makes the shards of a plan.

    progress(done, total): called with the number of rows loaded. Raises ValueError if neither the caller nor a
    checkpoint gives the number of shards; Locked; what making a shard raises.
    """
    with ExitStack() as undo:
        series, checkpointing, newest = None, None, None
        if request.url is not None:
            series = ClusterSeries(request.url, request.options)
            checkpointing = Checkpointing(series, series.lock())
            undo.callback(checkpointing.close)
            if request.number is not None:
                checkpointing.begin_with(request.number)
            newest = checkpointing.settled()
        if (count := request.shards or (len(newest.described.shards) if newest else None)) is None:
            raise ValueError(f"there is no checkpoint at {masked(request.url)}, so give the number of shards")
        plan = Plan(count, series.url if series else None, request.options, newest, request.how)
        meter = Meter(newest.rows if newest else 0, progress)
        timeouts = Timeouts.within(request.answer_seconds)
        coordinator = Coordinator(plan, partial(make, meter), checkpointing, request.absent_seconds, timeouts)
        undo.pop_all()
    return coordinator
