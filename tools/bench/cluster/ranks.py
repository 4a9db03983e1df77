"""`kvemb bench ranks`: training steps that ranks take together, compared with those of one process and one store.

The model has an EmbeddingBagCollection of many tables, all rows hot, and a network above it, in DistributedDataParallel
on ranks. All ranks together have the batch of the one process, so that both take the same steps; their losses are
compared. The peer has all cores; each rank has its part of them, as torchrun gives it. CPU time is that of all
processes: ranks, shards and Ray's own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvemb.tools.bench.data import Zipf, ids_of
from kvemb.tools.bench.hot.torch import import_torch
from kvemb.tools.bench.measure import scratch, take_turns
from kvemb.tools.bench.options import Batch, Dim, Exponent, Folder, Rows, Runs, Steps, Tables
from kvemb.tools.bench.processes import Asked, cpu_seconds
from kvemb.tools.bench.results import Report, compare

MAX_RATIO, BUDGET, HIDDEN = 3.0, "256MiB", 64
WARM_UP_RUNS, TOLERANCE = 2, 1e-3
Shards = Annotated[int, typer.Option(min=1, max=64, help="Number of shards.")]
RankCount = Annotated[int, typer.Option("--ranks", min=1, max=64, help="Number of ranks; 1: one client of the shards.")]


def run(
    ranks: RankCount = 2,
    shards: Shards = 2,
    tables: Tables = 26,
    rows: Rows = 10_000,
    dim: Dim = 8,
    batch: Batch = 512,
    steps: Steps = 40,
    runs: Runs = 5,
    zipf: Exponent = 1.0,
    folder: Folder = None,
) -> Report:
    """Train on ranks that share tables over shards. Peer: one process with one store, and the same batches."""
    _, report = import_torch()
    work = {"shards": shards, "tables": tables, "rows": rows, "dim": dim, "batch": batch, "steps": steps, "zipf": zipf}
    with scratch(folder) as place, ExitStack() as ends:
        one = [ends.enter_context(_started("the peer", place / "one", work, {}))]
        cores = os.cpu_count() or 1
        port, threads = str(_free_port()), str(max(1, cores // ranks))
        shared = {"RAY_ADDRESS": "local", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads}
        several = []
        for rank in range(ranks):
            of_rank = {**shared, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
            several.append(ends.enter_context(_started(f"rank {rank}", place / "several", work, of_rank)))
        for each in [*one, *several]:
            each.answer()  # its tables are filled

        def turn(processes: list[Asked], run: int) -> dict[str, float]:
            before = sum(cpu_seconds(each.pid) for each in processes)
            for each in processes:
                each.send(str(run))
            told = [each.answer() for each in processes]
            cpu = sum(cpu_seconds(each.pid) for each in processes) - before
            loss = sum(each["loss"] for each in told) / len(told)
            return {"ms": max(each["ms"] for each in told), "cpu": 1e3 * cpu / steps, "loss": loss}

        sides = [partial(turn, several), partial(turn, one)]
        take_turns(sides, WARM_UP_RUNS)
        mine, peer = take_turns([partial(_later, side) for side in sides], runs)
        for each in [*one, *several]:
            each.end()
    np.testing.assert_allclose([each["loss"] for each in mine], [each["loss"] for each in peer], rtol=TOLERANCE)
    report.facts["losses_compared"] = len(mine)
    name = f"step of {batch:,} examples, {ranks} ranks on {shards} shards"
    for what, unit in (("ms", "ms"), ("cpu", "ms CPU")):
        if not peer[0][what]:  # the system does not tell
            continue
        line = compare(name, unit, [each[what] for each in mine], "one store", [each[what] for each in peer])
        report.lines.append(line.ratio_at_most(MAX_RATIO if what == "ms" and ranks == cores == 2 else None))
    return report


def _later(side: Any, run: int) -> Any:
    return side(WARM_UP_RUNS + run)


def _started(name: str, path: Path, work: dict[str, Any], environment: dict[str, str]) -> Asked:
    inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    given = json.dumps({"path": str(path), **work})
    return Asked(name, ["-m", __name__, given], inherited | environment)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def train(path: str, shards: int, tables: int, rows: int, dim: int, batch: int, steps: int, zipf: float) -> None:
    """Answer each line, the number of a run, with its milliseconds a step and its loss. Without RANK: on one store."""
    import torch

    import kvemb
    import kvemb.torch as kt
    from kvemb.tools.bench.trained import adagrad, load

    answers, sys.stdout = sys.stdout, sys.stderr
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    shared = "RANK" in os.environ

    def answer(found: dict[str, float]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    with ExitStack() as last:
        if shared:
            how: dict[str, Any] = {"shards": shards, "memory_budget": BUDGET, "scratch": f"{path}-scratch"}
            store: Any = last.enter_context(kt.distributed(path, **how))
        else:
            store = last.enter_context(kvemb.open(path, memory_budget=BUDGET))
        names = [f"t{at}" for at in range(tables)]
        variables = {name: store.get_variable(name, dim=dim, optimizer=adagrad()) for name in names}
        if rank == 0:
            for variable in variables.values():
                load(variable, rows)
        torch.manual_seed(0)
        bags = kt.EmbeddingBagCollection(variables)
        above = torch.nn.Sequential(torch.nn.Linear(tables * dim, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1))
        both = torch.nn.ModuleList([bags, above])
        together = {"group": torch.distributed.group.WORLD} if shared else {}
        optimizers = [kt.Optimizer(both, **together), torch.optim.Adam(above.parameters(), 0.001)]
        upper: Any = torch.nn.parallel.DistributedDataParallel(above) if ranks > 1 else above
        answer({})
        for line in sys.stdin:
            drawn = Zipf(rows, zipf, int(line))
            ids = [ids_of(drawn.sample(tables * batch)).reshape(tables, batch)[:, rank::ranks] for _ in range(steps)]
            given = [dict(zip(names, torch.from_numpy(each.copy())[:, :, None], strict=True)) for each in ids]
            if ranks > 1:
                torch.distributed.barrier()
            begun, loss = time.perf_counter(), torch.zeros(())
            for each in given:
                loss = (upper(torch.cat(list(bags(each).values()), 1)) - 1).square().mean()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            answer({"ms": 1e3 * (time.perf_counter() - begun) / steps, "loss": loss.item()})


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
