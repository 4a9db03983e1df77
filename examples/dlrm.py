"""A DLRM (Naumov and others, 2019) with 26 tables, whose training may be killed.

Numbers go through one network and ids through 26 tables. The dot products of all pairs go
through another network. An EmbeddingBagCollection looks up all tables in one call, and one
step trains them in one call. A checkpoint holds the tables, the dense part and both
optimizers, so they belong to the same step. If the training is killed, run the same command
again: it continues from the newest checkpoint, and ends as if it had not been killed, bit
for bit.

    pip install 'kvemb[tools,torch]'
    OMP_WAIT_POLICY=PASSIVE python examples/dlrm.py

The clicks are generated. They depend on one of the numbers, and on which ids are divisible
by seven.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import BinaryIO

import torch
from rich.progress import track

import kvemb
import kvemb.torch as kt

loss_of = torch.nn.functional.binary_cross_entropy_with_logits
TABLES, IDS, NUMBERS = 26, 10_000, 4
COLUMNS = [f"c{number}" for number in range(TABLES)]


class DLRM(torch.nn.Module):
    """The model: a network below, 26 tables, and a network above."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        rule, start = kvemb.optimizers.Adagrad(0.05), kvemb.RandomNormal(0.0, 0.1)
        table = {"dim": dim, "optimizer": rule, "initializer": start}
        self.tables = kt.EmbeddingBagCollection(dict.fromkeys(COLUMNS, table))
        self.bottom = torch.nn.Sequential(torch.nn.Linear(NUMBERS, dim), torch.nn.ReLU())
        inputs = dim + (TABLES + 1) * TABLES // 2
        self.top = torch.nn.Sequential(
            torch.nn.Linear(inputs, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        self.pairs = torch.triu_indices(TABLES + 1, TABLES + 1, 1)

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits (n,) of numbers (n, NUMBERS) and ids (n, TABLES)."""
        dense = self.bottom(numbers)
        # Each bag is one id here; bags of any length are (ids, offsets).
        pooled = self.tables({name: ids[:, [at]] for at, name in enumerate(COLUMNS)})
        vectors = torch.stack([dense, *pooled.values()], dim=1)  # (n, TABLES + 1, dim)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], dim=1))[:, 0]


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the numbers, ids and clicks of a step, which depend on nothing else.

    Replace this with your log. To resume exactly, training must see the batches that it
    would have seen: keep the position of your reader in the checkpoint's `extra`.
    """
    chance = torch.Generator().manual_seed(step)
    ids = (torch.rand(size, TABLES, generator=chance) ** 3 * IDS).long()
    numbers = torch.randn(size, NUMBERS, generator=chance)
    wanted = (ids % 7 == 0).float().sum(1) - TABLES / 7 + numbers[:, 0]
    return numbers, ids, (torch.rand(size, generator=chance) < wanted.sigmoid()).float()


@torch.no_grad()
def auc(model: DLRM, size: int) -> float:
    """Return the area under the ROC curve for clicks that were not trained on."""
    model.eval()  # lookups record no uses
    numbers, ids, clicked = batch(2**40, size)
    ranks = torch.empty(size)
    ranks[model(numbers, ids).argsort()] = torch.arange(1.0, size + 1)
    positive = clicked.sum()
    worst = positive * (positive + 1) / 2
    return ((ranks[clicked == 1].sum() - worst) / (positive * (size - positive))).item()


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the defaults, and with this file's description as it stands."""


def main() -> None:
    """Train up to a step, and continue if an earlier run was stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    option = parser.add_argument
    option("--steps", type=int, default=300, help="train up to this step")
    option("--save-every", type=int, default=100, help="steps")
    option("--batch", type=int, default=512, help="examples in a batch")
    option("--dim", type=int, default=8, help="values in a row")
    option("--memory-budget", default="64MiB", help="for all tables")
    option("--path", type=Path, default="dlrm", help="folder")
    options = parser.parse_args()

    series = kvemb.CheckpointManager(options.path / "checkpoints", keep=2)
    store, last = series.resume(options.path / "store", memory_budget=options.memory_budget)
    with store, series:
        torch.manual_seed(0)
        model = DLRM(options.dim)
        rows, dense = kt.Optimizer(model), torch.optim.Adam(model.parameters(), 0.003)
        first = 0
        if last is not None:
            state = torch.load(last.files["train.pt"], weights_only=True)
            model.load_state_dict(state["model"])
            dense.load_state_dict(state["dense"])
            rows.load_state_dict(state["rows"])
            first = last.extra["step"]
            print(f"continues at step {first}")

        def save(file: BinaryIO) -> None:
            # The slots of `rows` are in the tables. Its state dict has the learning rates.
            parts = {"model": model, "dense": dense, "rows": rows}
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)

        losses = []
        for step in track(range(first, options.steps), "training"):
            numbers, ids, clicked = batch(step, options.batch)
            loss = loss_of(model(numbers, ids), clicked)
            loss.backward()
            for optimizer in (dense, rows):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            done = step + 1
            if done % options.save_every == 0 or done == options.steps:
                # The file is written at once, the rows in the background.
                series.save(
                    store, block=False, files={"train.pt": save}, extra={"step": done}
                )

        stats = store.stats
        tested = auc(model, 4_096)
    part = max(1, len(losses) // 10)
    if losses:
        print(f"loss   {sum(losses[:part]) / part:.4f} -> {sum(losses[-part:]) / part:.4f}")
    print(f"AUC    {tested:.3f} of new clicks (chance: 0.5)")
    print(f"rows   {stats.rows:,}; hot when looked up: {stats.hit_rate:.1%}")
    print(f"saved  {series.latest().path}")


if __name__ == "__main__":
    main()
