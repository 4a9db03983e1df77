"""The model of `kvemb demo --dlrm`: DLRM (Naumov et al., 2019) over tables of kvemb or of PyTorch, and its optimizers.

Both kinds of tables have the same initial rows, and their optimizers take the same steps, so two models made with the
same seed differ only by the rounding of float32. Needs PyTorch. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import kvemb
import kvemb.torch as kt
from kvemb.tools.demos.click_log import Clicks
from kvemb.tools.demos.sides import FIELDS, NUMBERS

RATE, DENSE_RATE, INITIAL_SPREAD = 0.05, 0.02, 0.05
# The initial accumulator is larger than the squares of most gradients: otherwise a gradient near 0, whose sign depends
# on rounding, would cause a full step. With larger rates or a smaller accumulator the two models diverge.
INITIAL_ACCUMULATOR = 1e-6
HIDDEN = 64
NAMES = tuple(f"field{number:02}" for number in range(FIELDS))
Ids = Mapping[str, torch.Tensor]


def kvemb_tables(store: kvemb.Store, dim: int, seed: int) -> kt.EmbeddingBagCollection:
    """Return the tables in a store, which are opened, or made if they are missing."""
    rule = kvemb.optimizers.Adagrad(RATE, INITIAL_ACCUMULATOR)
    return kt.EmbeddingBagCollection(
        {name: {"dim": dim, "optimizer": rule, "initializer": _start(seed, at)} for at, name in enumerate(NAMES)},
        store=store,
    )


class TorchTables(torch.nn.Module):
    """The tables of PyTorch, all in memory, with the interface of an EmbeddingBagCollection. sizes: rows of each."""

    def __init__(self, sizes: list[int], dim: int, seed: int) -> None:
        super().__init__()
        weights = (_start(seed, at).rows(np.arange(size), dim, np.float32) for at, size in enumerate(sizes))
        self.bags = torch.nn.ModuleList(
            torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(weight), freeze=False, mode="sum", sparse=True)
            for weight in weights
        )

    def forward(self, ids: Ids) -> dict[str, torch.Tensor]:
        """Return each feature's bags (n, dim) of ids (n, m)."""
        return {name: bag(ids[name]) for name, bag in zip(NAMES, self.bags, strict=True)}


def _start(seed: int, table: int) -> kvemb.RandomNormal:
    return kvemb.RandomNormal(0.0, INITIAL_SPREAD, seed=seed * FIELDS + table)


class DLRM(torch.nn.Module):
    """DLRM: numbers pass through one network, ids through the tables, dot products of all pairs through another.

    The activations are smooth, as rounding near the kink of a ReLU would make the two models diverge.
    """

    def __init__(self, tables: torch.nn.Module, dim: int, seed: int) -> None:
        super().__init__()
        self.tables = tables
        torch.manual_seed(seed)
        pairs = (FIELDS + 1) * FIELDS // 2
        self.bottom = torch.nn.Sequential(
            torch.nn.Linear(NUMBERS, HIDDEN), torch.nn.SiLU(), torch.nn.Linear(HIDDEN, dim), torch.nn.SiLU()
        )
        self.top = torch.nn.Sequential(
            torch.nn.Linear(dim + pairs, HIDDEN), torch.nn.SiLU(), torch.nn.Linear(HIDDEN, 1)
        )
        self._pairs = torch.triu_indices(FIELDS + 1, FIELDS + 1, 1)

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the log-odds of a click (n,) for numbers (n, NUMBERS) and ids (n, FIELDS)."""
        dense = self.bottom(numbers)
        pooled = self.tables(bags(ids))
        vectors = torch.stack([dense, *pooled.values()], dim=1)  # (n, FIELDS + 1, dim)
        products = (vectors @ vectors.transpose(1, 2))[:, self._pairs[0], self._pairs[1]]
        logits: torch.Tensor = self.top(torch.cat([dense, products], dim=1))[:, 0]
        return logits

    @property
    def networks(self) -> torch.nn.ModuleDict:
        """The dense part, whose parameters are not in the store."""
        return torch.nn.ModuleDict({"bottom": self.bottom, "top": self.top})


def bags(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return each field's ids (n, 1), given ids (n, FIELDS): bags of one id."""
    return {name: ids[:, at : at + 1] for at, name in enumerate(NAMES)}


def optimizers_of(model: DLRM) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers of the dense part and of the tables."""
    dense = torch.optim.Adagrad(model.networks.parameters(), DENSE_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)
    tables: torch.optim.Optimizer
    if isinstance(model.tables, kt.EmbeddingBagCollection):
        tables = kt.Optimizer(model)
    else:
        tables = torch.optim.Adagrad(model.tables.parameters(), RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)
    return {"dense": dense, "tables": tables}


def step(model: DLRM, optimizers: Mapping[str, torch.optim.Optimizer], lines: Clicks) -> float:
    """Take one step on the mean log loss of lines; return it."""
    logits = model(torch.from_numpy(lines.numbers), torch.from_numpy(lines.ids))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(lines.clicked))
    loss.backward()
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.item())


@torch.no_grad()
def scores(model: DLRM, lines: Clicks, at_once: int) -> Any:
    """Return the log-odds of each line (n,). Changes neither rows nor scores."""
    model.eval()
    found = [
        model(torch.from_numpy(lines.numbers[at : at + at_once]), torch.from_numpy(lines.ids[at : at + at_once]))
        for at in range(0, len(lines.clicked), at_once)
    ]
    model.train()
    return torch.cat(found).numpy()
