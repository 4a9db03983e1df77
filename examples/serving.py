"""A process serves the rows that another one trains: by a follower, and by a replica.

The trainer flushes every few steps. The follower opens the same store with `follow=True`:
`refresh()` moves all tables to the newest flush at once, and lookups go on meanwhile. A
replica is a store of its own, on this machine or another one. It is restored from a
checkpoint, and `apply_delta` copies what changed up to a later one.

    pip install 'kvemb[tools]'
    python examples/serving.py

The model is a factorisation of ratings in NumPy: its rows are all of it. The ratings are
generated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from rich.progress import Progress

import kvemb

USERS, ITEMS, HIDDEN = 10_000, 500, 4


class Ratings:
    """The products of hidden vectors; some users rate often. Replace this with your log."""

    def __init__(self, seed: int) -> None:
        hidden = np.random.default_rng(0)
        self._users = hidden.standard_normal((USERS, HIDDEN))
        self._items = hidden.standard_normal((ITEMS, HIDDEN))
        self._draw = np.random.default_rng(seed)

    def batch(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return users, items and ratings."""
        users = (self._draw.random(size) ** 4 * USERS).astype(np.int64)
        items = self._draw.integers(0, ITEMS, size)
        return users, items, np.sum(self._users[users] * self._items[items], 1, np.float32)


def train(options: argparse.Namespace) -> None:
    """Train beside main, and save checkpoints: after nine tenths, and at the end."""
    rule, start = kvemb.optimizers.Adagrad(0.3), kvemb.RandomNormal(0.0, 0.5)
    table = {"dim": options.dim, "optimizer": rule, "initializer": start}
    ratings, steps = Ratings(seed=1), options.steps
    series = kvemb.CheckpointManager(options.path / "checkpoints")
    with (
        kvemb.open(options.path / "store", memory_budget=options.memory_budget) as store,
        series,
    ):
        for name in ("users", "items"):
            store.get_variable(name, **table)
        # One row with the step. A reader's tables move at once, so it says what is served.
        progress = store.get_variable("step", dim=1, value_dtype="int64")
        for step in range(1, steps + 1):
            users, items, wanted = ratings.batch(options.batch)
            rows = store.lookup({"users": users, "items": items})
            error = np.sum(rows["users"] * rows["items"], 1) - wanted
            slope = (error / len(error) * options.dim)[:, None]
            grads = {"users": (users, slope * rows["items"])}
            grads["items"] = (items, slope * rows["users"])
            store.apply_gradients(grads)
            progress.upsert([0], [[step]])
            if step in (steps * 9 // 10, steps):
                series.save(store)
            elif step % options.flush_every == 0:
                store.flush()


def error_of(store: kvemb.Store) -> float:
    """Return the mean squared error of 1,000 ratings: here, a request to be served."""
    users, items, wanted = Ratings(seed=2).batch(1_000)
    rows = store.lookup({"users": users, "items": items})  # both from the same flush
    return float(np.mean((np.sum(rows["users"] * rows["items"], 1) - wanted) ** 2))


def follower_of(path: Path, trainer: BaseProcess) -> kvemb.Store:
    """Wait until a trainer has made its store with all tables, and open a follower."""
    while trainer.is_alive():
        try:
            store = kvemb.open(path, follow=True, memory_budget="16MiB")
        except kvemb.errors.StoreNotFound:
            time.sleep(0.05)
            continue
        if "step" in store.variables:
            return store
        store.close()
        time.sleep(0.05)
    raise SystemExit("the trainer ended before the follower had opened its store")


def serve(path: Path, steps: int, trainer: BaseProcess) -> tuple[list[float], int]:
    """Serve until the last step; return the error after each refresh, and all requests."""
    errors, requests, served = [], 0, 0
    with follower_of(path, trainer) as reader, Progress() as progress:
        bar = progress.add_task("served step", total=steps)
        while served < steps:
            alive = trainer.is_alive()
            if reader.refresh() or not errors:
                served = int(reader.variables["step"].lookup([0])[0, 0])
                errors.append(error_of(reader))
                progress.update(bar, completed=served)
            elif not alive:
                raise SystemExit("the trainer ended before its last step")
            error_of(reader)
            requests += 1
    return errors, requests


def replicate(path: Path) -> tuple[int, int, float]:
    """Bring a replica to the last checkpoint; return rows, copied rows, and its error."""
    first, last = kvemb.CheckpointManager(path / "checkpoints").list()
    copied = sum(len(change.keys) for change in last.changes(since=first))
    with kvemb.restore(first.path, path / "replica", memory_budget="16MiB") as replica:
        replica.apply_delta(last.path)
        rows = sum(variable.size() for variable in replica.variables.values())
        return rows, copied, error_of(replica)


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the defaults, and with this file's description as it stands."""


def main() -> None:
    """Start a trainer, serve what it trains, and then make a replica."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    option = parser.add_argument
    option("--steps", type=int, default=1_000, help="batches to train on")
    option("--flush-every", type=int, default=50, help="steps")
    option("--batch", type=int, default=512, help="ratings in a batch")
    option("--dim", type=int, default=8, help="values in a row")
    option("--memory-budget", default="64MiB", help="of the trainer")
    option("--path", type=Path, default="serving", help="a new folder")
    options = parser.parse_args()
    if options.path.exists():
        parser.error(f"{options.path} exists: name another --path")

    # Spawned: a process that was forked after a store had been opened can only read.
    spawning = multiprocessing.get_context("spawn")
    trainer = spawning.Process(target=train, args=(options,), daemon=True)
    trainer.start()
    errors, requests = serve(options.path / "store", options.steps, trainer)
    trainer.join()
    rows, copied, replicas = replicate(options.path)
    zeros = np.mean(Ratings(seed=2).batch(1_000)[2] ** 2)  # the error of rows of zeros
    print(f"loss      {zeros:.3f} -> {errors[-1]:.3f} after {len(errors)} refreshes")
    print(f"requests  {requests:,}, each of 1,000 ratings, while the trainer trained")
    print(f"replica   {rows:,} rows; the delta copied {copied:,}; loss {replicas:.3f}")


if __name__ == "__main__":
    main()
