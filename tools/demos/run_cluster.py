"""`kvemb demo --shards`: the demo of the click log over shards on Ray, one of which is killed half way.

A checkpoint is written after a quarter of the lines. After the loss the whole cluster goes back to it, and continues
training. At the end every row must equal, bit for bit, that of a single store that trained on the same lines without a
loss.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

import kvemb
import kvemb.cluster
from kvemb.cluster.ray_transport import ray_package
from kvemb.errors import ShardLost
from kvemb.handle import inside
from kvemb.tools.demos.click_log import Clicks
from kvemb.tools.demos.factorisation import Factorisation
from kvemb.tools.demos.figures import FIRST_NOTE
from kvemb.tools.demos.run_clicks import ClickRun
from kvemb.tools.local_ray import start_ray
from kvemb.tools.screen import Screen


def run(
    settings: ClickRun,
    shards: int,
    folder: Path,
    screen: Screen,
    *,
    transport: Literal["ray", "local"] = "ray",
    lose: Callable[[kvemb.cluster.Store], None] | None = None,
) -> None:
    """Train twice, and print a table. folder: an empty directory to work in. transport: of kvemb.cluster.open.

    lose: a function that loses a shard; None: the process of the last one is killed. Raises Corruption if a row
    differs.
    """
    if transport == "ray":
        start_ray()
    log = settings.log
    starts = range(0, settings.clicks, settings.batch)
    parts: list[Callable[[], Clicks]] = [
        lambda at=at: log.part(at, min(settings.batch, settings.clicks - at))  # type: ignore[misc]
        for at in starts
    ]
    quarter, half = len(parts) // 4, len(parts) // 2
    how: dict[str, Any] = {"memory_budget": settings.budget}
    with (
        screen.progress("undisturbed, in one store", len(parts), FIRST_NOTE) as advance,
        kvemb.open(folder / "store", **how) as store,
    ):
        model = Factorisation(store, settings.dim, settings.seed)
        for number, part in enumerate(parts):
            model.train(part())
            advance(number + 1, "")
    opened = kvemb.cluster.open(
        folder / "checkpoints", shards=shards, scratch=folder / "scratch", transport=transport, **how
    )
    with opened as cluster, screen.progress(f"over {shards} shards", len(parts), "") as advance:
        over: Any = cluster
        model, at, back = Factorisation(over, settings.dim, settings.seed), 0, None
        while at < len(parts):
            try:
                model.train(parts[at]())
                at += 1
                if at == quarter and back is None:
                    cluster.checkpoint()
                if at == half and back is None:
                    (lose or _kill)(cluster)
            except ShardLost:
                back = cluster.recover()
                at = quarter
                screen.milestone(str(back))
            advance(at, "")
        assert back is not None
        with kvemb.open(folder / "store", **how) as store:
            rows, differing = _compare(store, cluster)
    lines = [
        ("trained on", f"{settings.clicks:,} lines of a click log, dim {settings.dim}, over {shards} shards"),
        ("killed", f"one shard, after step {half:,} of {len(parts):,}"),
        ("went back to", f"step {quarter:,}, its last checkpoint, in {back.seconds:.1f} s"),
        ("at the end", f"{rows:,} rows; {'the same' if not differing else f'{differing:,} DIFFERENT'} as undisturbed"),
    ]
    summary = {"demo": "shards", "shards": shards, "clicks": settings.clicks, "steps": len(parts), "killed_after": half}
    summary |= {"checkpoint_after": quarter, "rows": rows, "rows_differing": differing}
    screen.close("kvemb demo --shards", lines, {**summary, "recovery_seconds": round(back.seconds, 3)})
    if differing:
        raise kvemb.errors.Corruption(f"{differing} of {rows} rows differ from those of the undisturbed training")


def _kill(cluster: kvemb.cluster.Store) -> None:
    """Kill the process of the last shard, and wait until that is noticed."""
    transport: Any = inside(cluster).session.calls.transport
    process = ray_package().get(transport.actors[-1].__ray_call__.remote(lambda _: os.getpid()), timeout=60)
    os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        cluster.check()  # raises ShardLost


def _compare(store: kvemb.Store, cluster: kvemb.cluster.Store) -> tuple[int, int]:
    """Return how many rows the store has, and how many differ in the cluster, in either direction."""
    count = differing = 0
    for name, variable in store.variables.items():
        keys, values = variable.export()
        found, others = cluster.variables[name].export()
        both, here, there = np.intersect1d(keys, found, return_indices=True)
        differ = (values[here].view(np.uint32) != others[there].view(np.uint32)).any(axis=1)
        count += len(keys)
        differing += int(differ.sum()) + len(keys) + len(found) - 2 * len(both)
    return count, differing
