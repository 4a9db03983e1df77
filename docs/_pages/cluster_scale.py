"""The tables of docs/operate/cluster_scale.md: the cost of a very large cluster, by arithmetic and a simulation.

The table's rows are spread evenly, and there is one trainer on each shard's node. In the simulation all trainers take a
step at the same time: each sends a call to each shard, one after the other; each shard answers calls in the order in
which they arrive; the next half of the step begins when the slowest answer has arrived. Sometimes a shard pauses. The
results are a function of Assumptions and the seed; run as a program, this file prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

SHARDS, SEED, STEPS = (8, 64, 1000), 0, 1000


def _given(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Assumptions:
    """What the estimates assume, each with its unit."""

    rows: float = _given(1e12, "rows of the table")
    dim: int = _given(64, "float32 values of a row, and as many of its one slot")
    keys: int = _given(65_536, "distinct keys of a trainer's step")
    step_seconds: float = _given(0.25, "seconds from one step of a trainer to the next")
    changed: float = _given(0.01, "share of the rows that change between two checkpoints, an hour apart")
    link: float = _given(3.1e9, "bytes a second of a node's network, each way")
    latency: float = _given(50e-6, "seconds that a message travels, one way")
    store: float = _given(1e9, "bytes a second between a node and the object store")
    disk: float = _given(15e12, "bytes of a node's disk")
    call_cpu: float = _given(300e-6, "seconds of a trainer's core, and of a shard's, for a call with rows")
    control_cpu: float = _given(300e-6, "seconds of the coordinator's core for a call through Ray")
    key_cpu: float = _given(0.2e-6, "seconds of a shard's core for a key")
    pause_share: float = _given(0.001, "share of the calls before which a shard pauses")
    pause: float = _given(0.05, "seconds of such a pause")
    failures: float = _given(2.0, "failures of a node in a year")
    cut_calls: int = _given(6, "calls of each shard for a checkpoint's cut")
    exchange_seconds: float = _given(0.25, "seconds between two reports of a client to the coordinator")

    @property
    def row_bytes(self) -> int:
        """The bytes of a row in a call."""
        return 4 * self.dim

    @property
    def record_bytes(self) -> int:
        """The bytes of a row on disk: embedding, slot, key, score, step."""
        return 2 * self.row_bytes + 25


def figures(shards: int, given: Assumptions) -> dict[str, float]:
    """Return the costs of a cluster with so many shards; the names contain the units."""
    up, down = given.keys * (16 + given.row_bytes), given.keys * given.row_bytes
    stored = given.rows * given.record_bytes / shards
    saved = stored * given.changed
    waits = step_seconds(shards, given)
    exchanges = shards / given.exchange_seconds
    return {
        "rows of a shard, billions": given.rows / shards / 1e9,
        "disk of a shard, TB": stored / 1e12,
        "sent by a trainer a step, MB": up / 1e6,
        "sent to a trainer a step, MB": down / 1e6,
        "of that to one shard, kB": up / shards / 1e3,
        "calls of a trainer a step": 2.0 * shards,
        "a node's network at that rate, % each way": 100 * (up + down) / given.step_seconds / given.link,
        "a step's waiting, median, ms": 1e3 * float(np.median(waits)),
        "a step's waiting, one in twenty, ms": 1e3 * float(np.quantile(waits, 0.95)),
        "calls of the coordinator a second": exchanges,
        "the coordinator's core, %": 100 * exchanges * given.control_cpu,
        "a cut, ms": 1e3 * given.cut_calls * (2 * given.latency + shards * given.control_cpu),
        "a checkpoint of what changed, minutes": saved / given.store / 60,
        "recovery, all shards from the store, hours": stored / given.store / 3600,
        "hours between two lost nodes": 365 * 24 / given.failures / shards,
    }


def step_seconds(shards: int, given: Assumptions) -> npt.NDArray[np.float64]:
    """Simulate STEPS steps; returns the seconds that the calls of each step take, lookup and update together."""
    chance = np.random.default_rng(SEED)
    up, down = given.keys * (16 + given.row_bytes) / shards, given.keys * given.row_bytes / shards
    # A lookup sends keys and brings rows; an update sends keys and gradients.
    ways = ((given.keys * 8 / shards, down), (up - given.keys * 8 / shards, 0.0))
    taken = np.zeros(STEPS)
    served = given.call_cpu + given.key_cpu * given.keys / shards
    order = np.arange(shards)
    for sent, answered in ways:
        sending = max(given.call_cpu, sent / given.link)
        # Trainer t begins with shard t, so that they do not all begin with the same one.
        begun = sending * (1 + (order[None, :] - order[:, None]) % shards)
        arrived = np.sort(begun + given.latency, axis=0)
        # A shard serves calls one after the other: each begins when it has arrived and the one before has ended.
        queue = served * np.arange(1, shards + 1)[:, None]
        done = (np.maximum.accumulate(arrived + served - queue, axis=0) + queue)[-1]
        receiving = shards * max(given.call_cpu, answered / given.link) if answered else 0.0
        for step in range(STEPS):
            paused = given.pause * (chance.random(shards) < given.pause_share)
            slowest = max(float((done + paused).max()), sending + receiving)
            taken[step] += slowest + given.latency + answered / given.link
    return taken


def breaks(shards: int, given: Assumptions) -> list[str]:
    """Return the limits that such a cluster exceeds, the worst first, each with a remedy."""
    found = figures(shards, given)
    checks = [
        (
            found["disk of a shard, TB"] * 1e12 / given.disk,
            "a shard's rows do not fit on its disk",
            f"more shards: at least {int(np.ceil(given.rows * given.record_bytes / given.disk)):,}",
        ),
        (
            found["recovery, all shards from the store, hours"] / found["hours between two lost nodes"],
            "nodes are lost faster than the cluster recovers",
            "restore only the lost shard, from a copy that follows it on another node",
        ),
        (
            found["a step's waiting, median, ms"] / 1e3 / given.step_seconds,
            "calls take longer than a step",
            "one call for the shards of a node, and trainers in lockstep exchange rows all to all",
        ),
        (
            found["a node's network at that rate, % each way"] / 100,
            "the network is full",
            "gradients in 16 bits, and rows that several trainers of a node share are sent once",
        ),
        (
            found["a checkpoint of what changed, minutes"] / 60,
            "a checkpoint takes longer than the hour until the next one",
            "fewer checkpoints, or a faster way to the object store",
        ),
        (found["the coordinator's core, %"] / 100, "the coordinator is busy", "clients exchange counts less often"),
    ]
    worst = sorted(((load, what, then) for load, what, then in checks if load > 1), reverse=True)
    return [f"{what} ({load:.1f} times the limit); remedy: {then}" for load, what, then in worst]


def text(given: Assumptions = Assumptions()) -> str:
    """Return the tables, as Markdown."""
    columns = {shards: figures(shards, given) for shards in SHARDS}
    lines = [f"| | {' | '.join(f'{shards:,} shards' for shards in SHARDS)} |", "|---|" + "---|" * len(SHARDS)]
    for name in columns[SHARDS[0]]:
        lines.append(f"| {name} | {' | '.join(_short(columns[shards][name]) for shards in SHARDS)} |")
    for shards in SHARDS:
        found = breaks(shards, given) or ["no limit is exceeded"]
        lines += ["", f"With {shards:,} shards:", "", *(f"- {each}" for each in found)]
    return "\n".join(lines) + "\n"


def assumed_text(given: Assumptions = Assumptions()) -> str:
    """Return the parameters, as Markdown."""
    lines = [
        f"| `{each.name}` | {getattr(given, each.name):g} | {each.metadata['meaning']} |" for each in fields(given)
    ]
    return "\n".join(["| name | value | what it is |", "|---|---|---|", *lines]) + "\n"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    print(assumed_text(), text(), sep="\n", end="")
