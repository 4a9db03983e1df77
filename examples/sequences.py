"""Next-item prediction: a GRU over a user's last items, trained with a sampled softmax.

The table may have hundreds of millions of items, so the softmax compares the right item
with sampled ones, which all sequences of a batch share. Frequent items are sampled more
often. The log of how often each is expected is therefore subtracted from its score ("logQ
correction"), so that the loss estimates that of the softmax over all items (Bengio and
Senécal, 2008). One lookup reads the rows of histories, answers and samples.

    pip install 'kvemb[tools,torch]'
    python examples/sequences.py

The sequences are generated: one of three items follows each item, or at times any item.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

import kvemb
import kvemb.torch as kt

ITEMS = 2_000  # numbered by frequency: 0 is the most frequent
PADDING = -1


class NextItem(torch.nn.Module):
    """Gives a vector for each place: the dot product with a row is that item's score."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        rule, start = kvemb.optimizers.Adagrad(0.1), kvemb.RandomNormal(0.0, 0.1)
        self.items = kt.Embedding(
            "items", dim, padding_idx=PADDING, optimizer=rule, initializer=start
        )
        self.reader = torch.nn.GRU(dim, 2 * dim, batch_first=True)
        self.out = torch.nn.Linear(2 * dim, dim)

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        """Return vectors (n, length, dim), of rows (n, length, dim) up to each place."""
        return self.out(self.reader(history)[0])


def sequences(count: int, length: int, draw: np.random.Generator) -> torch.Tensor:
    """Return items (count, length), padded at the end. Replace this with your log."""
    items = np.empty((count, length), np.int64)
    items[:, 0] = sampled(count, draw)
    for place in range(1, length):
        follows = (items[:, place - 1] * 7 + draw.integers(1, 4, count)) % ITEMS
        items[:, place] = np.where(draw.random(count) < 0.8, follows, sampled(count, draw))
    lengths = draw.integers(length // 2, length + 1, count)
    items[np.arange(length) >= lengths[:, None]] = PADDING
    return torch.from_numpy(items)


def sampled(count: int, draw: np.random.Generator) -> np.ndarray:
    """Draw item k with chance log((k + 2) / (k + 1)) / log(ITEMS + 1), near Zipf's law."""
    drawn = np.exp(draw.random(count) * math.log(ITEMS + 1)).astype(np.int64) - 1
    return np.minimum(drawn, ITEMS - 1)


def log_expected(items: torch.Tensor, samples: int) -> torch.Tensor:
    """Return the log of how often each item is expected among so many samples."""
    chance = torch.log((items + 2) / (items + 1)) / math.log(ITEMS + 1)
    return (samples * chance).log()


def loss_of(model: NextItem, batch: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of every place whose next item is known."""
    # One lookup for all. Gradients of an item that is there twice are summed.
    rows = model.items(torch.cat([batch.flatten(), samples]))
    sequence, negatives = rows.split([batch.numel(), len(samples)])
    sequence = sequence.view(*batch.shape, -1)
    known = batch[:, 1:] != PADDING
    right, answers = batch[:, 1:][known], sequence[:, 1:][known]
    asked = model(sequence[:, :-1])[known]
    # The right item is always among those that are compared, so its score is not corrected.
    positive = (asked * answers).sum(1, keepdim=True)
    negative = asked @ negatives.T - log_expected(samples, len(samples))
    # The right item may have been sampled, too.
    negative = negative.masked_fill(right[:, None] == samples, -torch.inf)
    scores = torch.cat([positive, negative], dim=1)
    return torch.nn.functional.cross_entropy(scores, scores.new_zeros(len(scores)).long())


@torch.no_grad()
def hits(model: NextItem, batch: torch.Tensor, best: int = 10) -> float:
    """Return how often a sequence's last item is among the best, without the correction."""
    model.eval()  # lookups record no uses
    last = (batch != PADDING).sum(1) - 1
    sequence = torch.arange(len(batch))
    vectors = model(model.items(batch))[sequence, last - 1]
    scores = vectors @ model.items(torch.arange(ITEMS)).T  # a large table needs an index
    found = scores.topk(best).indices
    return (found == batch[sequence, last][:, None]).any(1).float().mean().item()


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the defaults, and with this file's description as it stands."""


def main() -> None:
    """Train, evaluate and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    option = parser.add_argument
    option("--steps", type=int, default=400, help="batches to train on")
    option("--batch", type=int, default=64, help="sequences in a batch")
    option("--length", type=int, default=20, help="items in a sequence")
    option("--samples", type=int, default=256, help="sampled items of a batch")
    option("--dim", type=int, default=32, help="values in a row")
    option("--memory-budget", default="64MiB", help="for the table")
    option("--path", type=Path, default="sequences", help="folder")
    options = parser.parse_args()

    series = kvemb.CheckpointManager(options.path / "checkpoints", keep=2)
    store, last = series.resume(options.path / "store", memory_budget=options.memory_budget)
    with store, series:
        torch.manual_seed(0)
        model = NextItem(options.dim)
        rows, dense = kt.Optimizer(model), torch.optim.Adam(model.parameters(), 0.003)
        done = 0
        if last is not None:
            state = torch.load(last.files["train.pt"], weights_only=True)
            model.load_state_dict(state["model"])
            dense.load_state_dict(state["dense"])
            done = last.extra["steps"]
            print(f"continues after step {done}")

        losses = []
        draw = np.random.default_rng(done + 1)
        for _ in track(range(options.steps), "training"):
            batch = sequences(options.batch, options.length, draw)
            samples = torch.from_numpy(sampled(options.samples, draw))
            loss = loss_of(model, batch, samples)
            loss.backward()
            for optimizer in (rows, dense):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())

        state = {"model": model.state_dict(), "dense": dense.state_dict()}
        files = {"train.pt": lambda file: torch.save(state, file)}
        saved = series.save(store, files=files, extra={"steps": done + options.steps})
        stats = store.stats
        new = sequences(1_000, options.length, np.random.default_rng(0))
        found = hits(model, new)
    part = max(1, len(losses) // 10)
    print(f"loss     {np.mean(losses[:part]):.3f} -> {np.mean(losses[-part:]):.3f}")
    print(f"hits@10  {found:.3f} of the last items of new sequences")
    print(f"rows     {stats.rows:,} items; hot when looked up: {stats.hit_rate:.1%}")
    print(f"saved    {saved.path}")


if __name__ == "__main__":
    main()
