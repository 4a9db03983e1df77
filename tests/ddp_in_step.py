"""One rank of a DDP training in step, on Ray: RANK=0 ... python ddp_in_step.py FOLDER. Rank 0 writes the result."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import kvemb.torch as kt


def main(folder: Path) -> None:
    """Train as test_in_step does, with DDP's dense part."""
    sys.path.insert(0, str(Path(__file__).parent / "pytorch"))
    from test_in_step import BATCH, STEPS, Model, batch, exported

    with kt.distributed(folder / "series", shards=2, memory_budget="8MiB", scratch=folder / "scratch") as store:
        model, rank = Model(store), torch.distributed.get_rank()
        rows = kt.Optimizer(model, group=torch.distributed.group.WORLD)
        dense = torch.optim.SGD(model.dense.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(rows, 50, 0.5)
        trained, losses = DistributedDataParallel(model), []
        for step in range(STEPS):
            loss = trained([ids[rank * BATCH : (rank + 1) * BATCH] for ids in batch(step)]).square().mean()
            loss.backward()
            for optimizer in (rows, dense):
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            losses.append(loss.item())
        mean = torch.tensor(losses, dtype=torch.float64)
        torch.distributed.all_reduce(mean)
        if rank == 0:
            np.savez(folder / "result.npz", losses=mean.numpy() / 2, **exported(model))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
