"""Starts a coordinator, in the process that is to have it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvemb.cluster.calls import Patience
from kvemb.cluster.coordination.coordinator import Coordinator
from kvemb.cluster.coordination.cuts import ABSENT_SECONDS
from kvemb.cluster.durability.checkpointing import Checkpointing
from kvemb.cluster.durability.series import ClusterSeries
from kvemb.cluster.making import Plan
from kvemb.cluster.transport import Transport
from kvemb.meter import Meter, Progress

ANSWER_SECONDS = 300.0


@dataclass(frozen=True)
class Asked:
    """What is asked of kvemb.cluster.open. Plain values, which go to other processes.

    url: None: no checkpoints. shards: None: as many as the checkpoint has. how: arguments of kvemb.open for a shard.
    gpus: that each shard asks Ray for. answer_seconds: how long a shard may take for a call on rows. absent_seconds:
    how long a cut waits for the rest of a call (cuts). number: of the checkpoint to begin with; None: the newest.
    """

    url: str | None
    options: dict[str, Any]
    shards: int | None
    how: dict[str, Any]
    gpus: float = 0.0
    answer_seconds: float = ANSWER_SECONDS
    absent_seconds: float = ABSENT_SECONDS
    number: int | None = None


def start(asked: Asked, make: Callable[[Meter, Plan], Transport], progress: Progress | None) -> Coordinator:
    """Start a coordinator with its shards, in the state of a checkpoint. make: makes the shards of a plan.

    progress(done, total): called with the number of rows loaded. Raises ValueError if neither the caller nor a
    checkpoint says how many shards; Locked; what making a shard raises.
    """
    with ExitStack() as undo:
        series, checkpointing, newest = None, None, None
        if asked.url is not None:
            series = ClusterSeries(asked.url, asked.options)
            checkpointing = Checkpointing(series, series.lock())
            undo.callback(checkpointing.close)
            if asked.number is not None:
                checkpointing.begin_with(asked.number)
            newest = checkpointing.settled()
        if (count := asked.shards or (len(newest[1].shards) if newest else None)) is None:
            raise ValueError(f"shards must be given, as there is no checkpoint at {asked.url}")
        rows = sum(entry.rows for entry in newest[1].variables.values()) if newest else 0
        plan = Plan(count, series.url if series else None, asked.options, newest, asked.how)
        meter = Meter(rows, progress)
        patience = Patience.within(asked.answer_seconds)
        coordinator = Coordinator(plan, partial(make, meter), checkpointing, asked.absent_seconds, patience)
        undo.pop_all()
    return coordinator
