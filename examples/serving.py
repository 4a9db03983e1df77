"""A process serves the rows that another one trains: a follower, and a replica that deltas bring up to date.

The trainer flushes every few steps. The follower opens the same store with `follow=True`: `refresh()` moves all tables
to the newest flush at once, and lookups never wait for training. A replica is a store of its own, on this machine or
another one: it is restored from a checkpoint, and `apply_delta` copies what changed up to a later one.

    pip install 'kvemb[tools]'
    python examples/serving.py

The model is a factorisation of ratings in NumPy, whose rows are all of it. The ratings are generated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path

import numpy as np
from rich.progress import Progress

import kvemb

USERS, ITEMS = 10_000, 500


class Ratings:
    """Generated ratings, the products of hidden vectors; some users rate often. Replace this with your log."""

    def __init__(self, seed: int) -> None:
        hidden = np.random.default_rng(0)
        self._users, self._items = hidden.standard_normal((USERS, 4)), hidden.standard_normal((ITEMS, 4))
        self._draw = np.random.default_rng(seed)

    def batch(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return users, items and ratings."""
        users = (self._draw.random(size) ** 4 * USERS).astype(np.int64)
        items = self._draw.integers(0, ITEMS, size)
        return users, items, (self._users[users] * self._items[items]).sum(1).astype(np.float32)


def train(path: Path, steps: int, flush_every: int, batch: int, dim: int, memory_budget: str) -> None:
    """Train the store, and save two checkpoints: after nine tenths, and at the end. Runs in a process of its own."""
    ratings = Ratings(seed=1)
    table = {
        "dim": dim,
        "optimizer": kvemb.optimizers.Adagrad(0.3),
        "initializer": kvemb.RandomNormal(0.0, 0.5),
    }
    series = kvemb.CheckpointManager(path / "checkpoints")
    with kvemb.open(path / "store", memory_budget=memory_budget) as store, series:
        for name in ("users", "items"):
            store.get_variable(name, **table)
        # One row with the step. All tables of a reader move at once, so it says which step is served.
        progress = store.get_variable("step", dim=1, value_dtype="int64")
        for step in range(1, steps + 1):
            users, items, wanted = ratings.batch(batch)
            rows = store.lookup({"users": users, "items": items})
            error = ((rows["users"] * rows["items"]).sum(1) - wanted)[:, None] / batch * 8
            store.apply_gradients({"users": (users, error * rows["items"]), "items": (items, error * rows["users"])})
            progress.upsert([0], [[step]])
            if step in (steps * 9 // 10, steps):
                series.save(store)
            elif step % flush_every == 0:
                store.flush()


def error_of(store: kvemb.Store) -> float:
    """Return the mean squared error of 1,000 ratings: what a request to this process would compute."""
    users, items, wanted = Ratings(seed=2).batch(1_000)
    rows = store.lookup({"users": users, "items": items})
    return float(np.mean(((rows["users"] * rows["items"]).sum(1) - wanted) ** 2))


def when_there(path: Path, trainer: multiprocessing.process.BaseProcess) -> kvemb.Store:
    """Open the store that a trainer is about to make, and wait for its first flush with tables."""
    while True:
        try:
            store = kvemb.open(path, follow=True, memory_budget="16MiB")
            if "step" in store.variables:
                return store
            store.close()
        except kvemb.errors.StoreNotFound:
            pass
        if not trainer.is_alive():
            raise SystemExit("the trainer ended before its first flush")
        time.sleep(0.05)


def follow(path: Path, steps: int, trainer: multiprocessing.process.BaseProcess) -> tuple[list[float], int]:
    """Serve while the trainer trains; return the error at each refresh, and the number of requests served."""
    errors, requests, served = [], 0, 0
    with when_there(path, trainer) as reader, Progress() as progress:
        bar = progress.add_task("served step", total=steps)
        while served < steps:
            ended = not trainer.is_alive()
            if reader.refresh() or not errors:
                served = int(reader.variables["step"].lookup([0])[0, 0])
                errors.append(error_of(reader))
                progress.update(bar, completed=served)
            elif ended:
                break  # it failed: there is nothing newer to come
            error_of(reader)
            requests += 1
    return errors, requests


def replicate(path: Path) -> tuple[int, int, float]:
    """Bring a replica from the first checkpoint to the last; return rows, how many were copied, and its error."""
    first, last = (kvemb.CheckpointManager(path / "checkpoints").list()[at] for at in (0, -1))
    changed = sum(len(change.keys) for change in last.changes(since=first))
    with kvemb.restore(first.path, path / "replica", memory_budget="16MiB") as replica:
        replica.apply_delta(last.path)
        return sum(table.size() for table in replica.variables.values()), changed, error_of(replica)


def main() -> None:
    """Start a trainer, serve what it trains, and then make a replica."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000, help="batches to train on (default: %(default)s)")
    parser.add_argument("--flush-every", type=int, default=50, help="steps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=512, help="ratings in a batch (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=8, help="values in a row (default: %(default)s)")
    parser.add_argument("--memory-budget", default="64MiB", help="of the trainer (default: %(default)s)")
    parser.add_argument("--path", type=Path, default="serving", help="a new folder (default: %(default)s)")
    options = parser.parse_args()
    if options.path.exists():
        parser.error(f"{options.path} exists: delete it, or name another --path")

    how = (options.path, options.steps, options.flush_every, options.batch, options.dim, options.memory_budget)
    # Spawned, not forked: a process that was forked from one with an open store can only read.
    trainer = multiprocessing.get_context("spawn").Process(target=train, args=how, daemon=True)
    trainer.start()
    errors, requests = follow(options.path / "store", options.steps, trainer)
    trainer.join()
    if trainer.exitcode:
        raise SystemExit(f"the trainer failed: exit code {trainer.exitcode}")
    rows, changed, replicas = replicate(options.path)
    untrained = float(np.mean(Ratings(seed=2).batch(1_000)[2] ** 2))  # of rows of zeros
    print(f"loss      {untrained:.3f} -> {errors[-1]:.3f} in the follower, in {len(errors)} refreshes")
    print(f"requests  {requests:,} were served meanwhile, each of 1,000 ratings")
    print(f"replica   {rows:,} rows, of which the delta copied {changed:,}; loss {replicas:.3f}")


if __name__ == "__main__":
    main()
