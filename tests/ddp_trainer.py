"""One rank of a DDP training, as a client of a cluster on Ray: python ddp_trainer.py RANK RAY FOLDER.

Rank 0 opens the cluster and rank 1 connects. The ranks' optimizers step in turns, so that the result is deterministic.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kvemb
import kvemb.cluster
import kvemb.torch as kt

RANKS, STEPS = 2, 6


class Model(torch.nn.Module):
    """An embedding in a store, and a dense layer."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        how = {"optimizer": kvemb.optimizers.Adagrad(0.3), "initializer": kvemb.RandomNormal(0.0, 1.0, seed=7)}
        self.users = kt.Embedding("users", 4, store=store, restrict_policy=kvemb.FrequencyRestrictPolicy(), **how)
        torch.manual_seed(1)
        self.dense = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return a number for each id."""
        return self.dense(self.users(ids))


def batches(rank: int) -> Iterator[torch.Tensor]:
    """Return the ids of a rank's steps; ranks have many ids in common, and each rank has some twice."""
    made = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        yield torch.randint(0, 50, (32,), generator=made)


def result(model: Model) -> dict[str, Any]:
    """Return the trained rows and the trained dense layer."""
    keys, rows, slots, scores = model.users.variable.export(with_slots=True, with_scores=True)
    dense = {name: value.detach().numpy() for name, value in model.dense.named_parameters()}
    return {"keys": keys, "rows": rows, "scores": scores, **slots, **dense}


def main(rank: int, address: str, folder: Path) -> None:
    """Train; rank 0 writes the result."""
    torch.set_num_threads(1)
    ray.init(address=address, log_to_driver=False)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=RANKS)
    if rank == 0:
        how = {"memory_budget": "4MiB", "scratch": folder / "scratch"}
        cluster = kvemb.cluster.open(folder / "series", shards=2, **how)
    else:
        cluster = kvemb.cluster.connect(folder / "series", wait_seconds=300)
    model = Model(cluster)
    trained = DistributedDataParallel(model)
    optimizers = [torch.optim.SGD(model.dense.parameters(), 0.1), kt.Optimizer(model)]
    for ids in batches(rank):
        loss = trained(ids).square().mean()
        dist.barrier()  # all ranks have looked up
        loss.backward()
        optimizers[0].step()
        for turn in range(RANKS):
            if turn == rank:
                optimizers[1].step()
            dist.barrier()
        for optimizer in optimizers:
            optimizer.zero_grad()
    if rank == 1:
        assert cluster.checkpoint().number == 1
        cluster.close()
    dist.barrier()
    if rank == 0:
        np.savez(folder / "result.npz", **result(model))
        cluster.close(flush=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
