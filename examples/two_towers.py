"""Retrieval with two towers: one for users, one for items, and negatives from the batch.

Popular items are negatives more often than others. The log of the chance that an item is
drawn is therefore subtracted from its scores ("logQ correction": Yi and others, RecSys
2019). The rows of the next batch are read while this one trains. The tables and the dense
part are saved in one checkpoint, and another run continues from it.

    pip install 'kvemb[tools,torch]'
    python examples/two_towers.py

The clicks are generated: users of a hundred groups click items of their own group.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

import kvemb
import kvemb.torch as kt

USERS, GROUPS, ITEMS_OF_A_GROUP = 5_000, 100, 50
BUCKETS = 1 << 18  # of counts; more than the items, so that few items share a count

Batch = dict[str, torch.Tensor]


class Towers(torch.nn.Module):
    """A table and a linear layer for users, and the same for items."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        rule, start = kvemb.optimizers.Adagrad(0.1), kvemb.RandomNormal(0.0, 0.1)
        self.users = kt.Embedding("users", dim, optimizer=rule, initializer=start)
        self.items = kt.Embedding("items", dim, optimizer=rule, initializer=start)
        self.user_tower = torch.nn.Linear(dim, dim)
        self.item_tower = torch.nn.Linear(dim, dim)
        # How often each item was seen. A buffer is saved and restored with the state dict.
        self.register_buffer("seen", torch.zeros(BUCKETS, dtype=torch.int64))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Return the score of every user (rows) with every item (columns)."""
        return self.user_tower(self.users(users)) @ self.item_tower(self.items(items)).T

    def log_chance(self, items: torch.Tensor) -> torch.Tensor:
        """Count items, and return the log of each one's share of all that were counted."""
        buckets = items % BUCKETS
        self.seen.index_add_(0, buckets, torch.ones_like(items))
        return (self.seen[buckets] / self.seen.sum()).log()


def clicks(batches: int, size: int, seed: int) -> Iterator[Batch]:
    """Yield batches of users and the items they clicked. Replace this with your log."""
    draw = np.random.default_rng(seed)
    for _ in range(batches):
        users = draw.integers(0, USERS, size)
        favourites = np.minimum(draw.zipf(1.5, size), ITEMS_OF_A_GROUP) - 1
        items = users % GROUPS + GROUPS * favourites
        yield {"user": torch.from_numpy(users), "item": torch.from_numpy(items)}


def loss_of(model: Towers, batch: Batch) -> torch.Tensor:
    """Return the loss of a softmax over the batch's items; each user's own is right."""
    items = batch["item"]
    scores = model(batch["user"], items) - model.log_chance(items)
    # Another click on the same item is no negative.
    same = (items[None, :] == items[:, None]) & ~torch.eye(len(items), dtype=torch.bool)
    scores = scores.masked_fill(same, -torch.inf)
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(items)))


@torch.no_grad()
def recall(model: Towers, batch: Batch, best: int = 10) -> float:
    """Return how often the clicked item is among the best, without the correction."""
    model.eval()  # lookups record no uses
    # A large table needs export_batches and an index.
    keys = torch.from_numpy(model.items.variable.export()[0])
    found = keys[model(batch["user"], keys).topk(min(best, len(keys))).indices]
    return (found == batch["item"][:, None]).any(1).float().mean().item()


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the defaults, and with this file's description as it stands."""


def main() -> None:
    """Train, evaluate and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    option = parser.add_argument
    option("--steps", type=int, default=400, help="batches to train on")
    option("--batch", type=int, default=256, help="clicks in a batch")
    option("--dim", type=int, default=16, help="values in a row")
    option("--memory-budget", default="64MiB", help="for both tables")
    option("--path", type=Path, default="two_towers", help="folder")
    options = parser.parse_args()

    series = kvemb.CheckpointManager(options.path / "checkpoints", keep=2)
    store, last = series.resume(options.path / "store", memory_budget=options.memory_budget)
    with store, series:
        torch.manual_seed(0)
        model = Towers(options.dim)
        rows, dense = kt.Optimizer(model), torch.optim.Adam(model.parameters(), 0.01)
        done = 0
        if last is not None:
            state = torch.load(last.files["train.pt"], weights_only=True)
            model.load_state_dict(state["model"])
            dense.load_state_dict(state["dense"])
            done = last.extra["steps"]
            print(f"continues after step {done}")

        losses = []
        batches = clicks(options.steps, options.batch, seed=done + 1)
        ahead = kt.prefetching(batches, {model.users: "user", model.items: "item"})
        for batch in track(ahead, "training", total=options.steps):
            loss = loss_of(model, batch)
            loss.backward()
            # The gradients of rows are not those of the model's parameters.
            torch.nn.utils.clip_grad_norm_([*model.parameters(), *rows.leaves], 10.0)
            for optimizer in (rows, dense):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())

        state = {"model": model.state_dict(), "dense": dense.state_dict()}
        files = {"train.pt": lambda file: torch.save(state, file)}
        saved = series.save(store, files=files, extra={"steps": done + options.steps})
        hit_rate = store.stats.hit_rate
        found = recall(model, next(clicks(1, 1_000, seed=0)))
        users, items = (table.variable.size() for table in (model.users, model.items))
    part = max(1, len(losses) // 10)
    print(f"loss       {np.mean(losses[:part]):.3f} -> {np.mean(losses[-part:]):.3f}")
    print(f"recall@10  {found:.3f} of new clicks (chance: {10 / items:.3f})")
    print(f"rows       {users:,} and {items:,}; hot when looked up: {hit_rate:.1%}")
    print(f"saved      {saved.path}")


if __name__ == "__main__":
    main()
