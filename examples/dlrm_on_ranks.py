"""The DLRM of dlrm.py on several ranks, whose training may be killed.

The ranks share 26 tables in a cluster of shards. Each rank takes its part of the batch, and
all take each step together. So the result is that of one process with the whole batch, up
to the rounding of sums. torchrun starts the ranks; the first one starts Ray, the shards and
the cluster. A checkpoint holds the tables, the dense part and both optimizers. If the
training is killed, run the same command again: it continues from the newest checkpoint.

    pip install 'kvemb[cluster,tools,torch]'
    torchrun --nproc-per-node 2 examples/dlrm_on_ranks.py

python examples/dlrm_on_ranks.py trains on one rank.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import kvemb.cluster
import kvemb.torch as kt
from dlrm import DLRM, Help, auc, batch, loss_of


def main() -> None:
    """Train up to a step, and continue if an earlier run was stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    option = parser.add_argument
    option("--steps", type=int, default=300, help="train up to this step")
    option("--save-every", type=int, default=100, help="steps")
    option("--batch", type=int, default=512, help="examples in a batch of all ranks")
    option("--dim", type=int, default=8, help="values in a row")
    option("--shards", type=int, default=2, help="processes that hold the tables")
    option("--memory-budget", default="64MiB", help="for all tables of a shard")
    option("--path", type=Path, default="dlrm_on_ranks", help="folder")
    options = parser.parse_args()

    url = options.path.absolute()
    how = {"shards": options.shards, "memory_budget": options.memory_budget}
    with kt.distributed(url, **how) as store:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        model = DLRM(options.dim)
        rows = kt.Optimizer(model, group=dist.group.WORLD)
        dense = torch.optim.Adam(model.parameters(), 0.003)
        parts = {"model": model, "dense": dense, "rows": rows}
        first = resume(url, store.last_checkpoint, parts) if store.last_checkpoint else 0
        if first and rank == 0:
            print(f"continues at step {first}", flush=True)
        trained = DistributedDataParallel(model)

        def save(file: BinaryIO) -> None:
            # The slots of `rows` are in the tables. Its state dict has the learning rates.
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)

        losses = []
        for step in range(first, options.steps):
            numbers, ids, clicked = (
                each[rank::ranks] for each in batch(step, options.batch)
            )
            loss = loss_of(trained(numbers, ids), clicked)
            loss.backward()
            for optimizer in (dense, rows):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            done = step + 1
            if done % options.save_every == 0 or done == options.steps:
                if rank == 0:
                    # The snapshot is taken at once; it is written in the background.
                    store.checkpoint(
                        keep=2, block=False, files={"train.pt": save}, extra={"step": done}
                    )
                dist.barrier()  # no rank looks up the next batch before the snapshot

        means = torch.tensor(losses)
        dist.all_reduce(means)  # each rank has the losses of its part of the batches
        losses = (means / ranks).tolist()
        if rank == 0:
            tested, counts = auc(model, 4_096), store.stats
    if rank == 0:
        part = max(1, len(losses) // 10)
        if losses:
            ends = [sum(each) / part for each in (losses[:part], losses[-part:])]
            print(f"loss   {ends[0]:.4f} -> {ends[1]:.4f}")
        print(f"AUC    {tested:.3f} of new clicks (chance: 0.5)")
        print(f"rows   {counts.rows:,} on {options.shards} shards; {ranks} ranks")


def resume(url: Path, number: int, parts: dict[str, torch.nn.Module]) -> int:
    """Load the dense part of a checkpoint, on each rank; returns the step that follows."""
    with tempfile.TemporaryDirectory() as folder:
        files = kvemb.cluster.pull_files(url, Path(folder) / "files", number=number)
        state = torch.load(files["train.pt"], weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return kvemb.cluster.latest(url, number=number)[1].extra["step"]


if __name__ == "__main__":
    main()
