"""A training step whose rows are all hot on a GPU, compared with PyTorch's EmbeddingBag and SparseAdam there.

Both sides sum bags of the same ids, and end with the same rows within rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.gpu.hot import unsaved
from kvemb.tools.bench.measure import Work, measure_alternately, scratch
from kvemb.tools.bench.results import Comparison, compare

BAG = 16
MIN_RATIO = 1.5
# dynamicemb on an H100, with all rows in its memory: ms of a step of 1,048,570 ids over 10 tables of dim 128, Adam.
DYNAMICEMB_MS = 2.19
RATE = 0.01


def measure(
    device: str, rows: int, dim: int, batch: int, steps: int, runs: int, folder: Path | None
) -> Iterator[Comparison]:
    """Yield the lines; none if PyTorch has no GPU. batch: ids of a step."""
    if (gpu := gpu_of_torch(device)) is None:
        return
    import torch

    import kvemb.torch as kt

    draw = np.random.default_rng(1)
    ids = [torch.from_numpy(draw.integers(0, rows, (batch // BAG, BAG))).to(gpu) for _ in range(steps)]
    with scratch(folder) as path, unsaved(path / "store") as store:
        rule = kvemb.optimizers.Adam(RATE, bias_correction="global")
        bags = kt.EmbeddingBag("rows", dim=dim, mode="sum", store=store, devices=device, optimizer=rule, init_size=rows)
        chance = torch.Generator(gpu).manual_seed(1)
        weight = torch.empty(rows, dim, device=gpu).uniform_(-0.1, 0.1, generator=chance)
        for start in range(0, rows, 1 << 20):
            keys = torch.arange(start, min(start + (1 << 20), rows), device=gpu)
            bags.variable.upsert(keys, weight[keys])
        peer = torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, _weight=weight.clone())
        ours, theirs = kt.Optimizer(bags), torch.optim.SparseAdam(peer.parameters(), lr=RATE)
        sides = _steps(bags, ours, ids), _steps(peer, theirs, ids)
        measure_alternately(sides, 1)  # warm up
        taken = measure_alternately(sides, runs)
        if bags.variable.stats.tiers[device].rows < rows:
            raise AssertionError("some rows were not hot on the GPU, so the measurement is not valid")
        sample = ids[0].reshape(-1)[:4096]
        mine, other = bags.variable.lookup(sample), peer.weight.detach()[sample]
        # Compared as a whole: the sign of a sum near zero, and so Adam's step, depends on rounding.
        if (mine - other).norm() > 1e-3 * other.norm():
            raise AssertionError("the rows differ from PyTorch's after the same steps")
    rates, others = ([steps * batch / each.wall for each in side] for side in taken)
    what = f"training step, all hot, dim {dim}, {batch:,} ids"
    yield compare(what, "ids/s", rates, "torch.nn.EmbeddingBag, SparseAdam", others).ratio_at_least(MIN_RATIO)
    published = [batch / (DYNAMICEMB_MS / 1000)] * runs
    yield compare(what, "ids/s", rates, f"dynamicemb's published {DYNAMICEMB_MS} ms, on an H100", published)


def gpu_of_torch(device: str) -> Any:
    """Return PyTorch's name of a GPU; None if PyTorch is not installed, or has no GPU."""
    try:
        import torch
    except ImportError:
        return None
    return torch.device("cuda", int(device.partition(":")[2])) if torch.cuda.is_available() else None


def _steps(module: Any, optimizer: Any, ids: list[Any]) -> Work:
    """Return a function that takes a step with each batch of ids, and waits for the GPU."""

    def work(run: int) -> None:
        for batch in ids:
            module(batch).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        module.eval()
        module(ids[0][:1]).sum().item()  # available once all earlier steps have been done
        module.train()

    return work
