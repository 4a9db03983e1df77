"""`kvemb bench torch`: training steps of a module of kvemb.torch, all rows hot, compared with PyTorch's own.

A step looks up a batch of ids, takes the gradient that pulls every row towards one target, and updates. PyTorch's bags
have one id each, so a lookup gives one row for each id on both sides. kvemb's Adagrad is compared with
torch.optim.Adagrad, whose rows must be equal at the end, with SparseAdam, and with FBGEMM's fused row-wise Adagrad, if
FBGEMM (fbgemm-gpu-cpu) is installed. All take their steps in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.installed import pip_install
from kvemb.tools.bench.data import Floats, Ids, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import Work, compile_seconds, measure_alternately, scratch
from kvemb.tools.bench.results import Report, compare, compare_cost
from kvemb.tools.bench.train import EPSILON, LEARNING_RATE, LOAD_BATCH, target
from kvemb.tools.failures import BadInput

MIN_RATIO, MIN_OF_ADAM, MIN_OF_FBGEMM = 3.0, 5.0, 5.0
MAX_CPU = 0.3
# Arguments with which torch.optim.Adagrad takes the same steps as kvemb's Adagrad.
ADAGRAD = {"lr": LEARNING_RATE, "initial_accumulator_value": 0.0, "eps": EPSILON}


def run(rows: int, dim: int, batch: int, steps: int, runs: int, folder: Path | None) -> Report:
    """Time `runs` runs of `steps` steps each. Raises BadInput if PyTorch is not installed."""
    report = Report("torch", {"rows": rows, "dim": dim, "batch": batch, "steps": steps, "runs": runs})
    torch = import_torch(report)
    report.facts["compile_s"] = compile_seconds(dim)
    chance = np.random.default_rng(6)
    work = [[chance.integers(0, rows, batch) for _ in range(steps)] for _ in range(runs)]
    pull = target(dim)
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_of_hot(rows, dim)) as store:
        optimizer = kvemb.optimizers.Adagrad(LEARNING_RATE, 0.0, EPSILON)
        var = store.get_variable("trained", dim=dim, optimizer=optimizer, init_size=rows)
        start = np.concatenate([values_of(ids, dim) for ids in batches_of_ids(rows, LOAD_BATCH)])
        for at, ids in zip(range(0, rows, LOAD_BATCH), batches_of_ids(rows, LOAD_BATCH), strict=True):
            var.upsert(ids, start[at : at + len(ids)])
        made = TorchTable.adagrad(torch, start, pull), TorchTable.sparse_adam(torch, start, pull)
        peer, module = made[0], Module(torch, var, pull)
        ids_of_run = [[ids_of(positions) for positions in run] for run in work]

        def ours(i: int) -> None:
            for ids in ids_of_run[i]:
                module.train(ids)

        def theirs(i: int) -> None:
            for positions in work[i]:
                peer.train(positions)

        def with_adam(i: int) -> None:
            for positions in work[i]:
                made[1].train(positions)

        sides: tuple[Work, ...] = (ours, theirs, with_adam)
        try:
            fused = FbgemmTable(torch, start, pull)
        except (ImportError, OSError) as error:
            report.facts["fbgemm"] = f"not measured: {error}"
        else:

            def with_fbgemm(i: int) -> None:
                for positions in work[i]:
                    fused.train(positions)

            sides, report.facts["fbgemm"] = (*sides, with_fbgemm), "measured"
        measure_alternately(sides, 1)  # warm up
        before = var.stats
        taken = measure_alternately(sides, runs)
        if (var.stats.misses, var.stats.absent) != (before.misses, before.absent):
            raise AssertionError("some rows were not hot, so the measurement is not valid")
        seen = np.unique(work[-1][-1])
        np.testing.assert_allclose(var.lookup(ids_of(seen), touch=False), peer.rows(seen), rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(seen)
    name, count = "EmbeddingBag(sparse=True) + optim.Adagrad", steps * batch
    rates = [[count / each.wall for each in side] for side in taken]
    cpu = [[each.cpu / count * 1e9 for each in side] for side in taken[:2]]
    report.lines = [
        compare("step", "rows/s", rates[0], name, rates[1], MIN_RATIO),
        compare("step", "rows/s", rates[0], "EmbeddingBag(sparse=True) + SparseAdam", rates[2], MIN_OF_ADAM),
        *(compare("step", "rows/s", rates[0], "FBGEMM, row-wise Adagrad", each, MIN_OF_FBGEMM) for each in rates[3:]),
        compare_cost("CPU of a step", "ns a row", cpu[0], name, cpu[1], MAX_CPU),
    ]
    return report


class Module:
    """A module over a variable, and its optimizer. pull (dim,): see train_step."""

    def __init__(self, torch: Any, var: kvemb.Variable, pull: Floats) -> None:
        import kvemb.torch as kt

        self._torch, self._pull, self._table = torch, torch.from_numpy(pull), kt.Embedding(var)
        self._optimizer = kt.Optimizer(self._table)

    def train(self, ids: Ids) -> None:
        """Take one step on the rows of ids."""
        values = self._table(self._torch.from_numpy(ids))
        values.backward(values.detach() - self._pull)
        self._optimizer.step()


class TorchTable:
    """The same rows and steps in PyTorch. start (rows, dim): the initial rows, copied; pull (dim,): see train_step."""

    def __init__(self, torch: Any, start: Floats, pull: Floats, make: Callable[[Any], Any]) -> None:
        self._torch, self._pull = torch, torch.from_numpy(pull)
        weight = torch.from_numpy(start.copy())
        self._table = torch.nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=True)
        self._optimizer = make(self._table.parameters())

    @classmethod
    def adagrad(cls, torch: Any, start: Floats, pull: Floats) -> TorchTable:
        """Return a table that is trained with torch.optim.Adagrad."""
        return cls(torch, start, pull, lambda parameters: torch.optim.Adagrad(parameters, **ADAGRAD))

    @classmethod
    def sparse_adam(cls, torch: Any, start: Floats, pull: Floats) -> TorchTable:
        """Return a table that is trained with torch.optim.SparseAdam."""
        return cls(torch, start, pull, lambda parameters: torch.optim.SparseAdam(list(parameters), lr=LEARNING_RATE))

    def train(self, positions: Ids) -> None:
        """Take one step on the rows at these positions."""
        offsets = self._torch.arange(len(positions))
        self._optimizer.zero_grad()
        values = self._table(self._torch.from_numpy(positions), offsets)
        values.backward(values.detach() - self._pull)
        self._optimizer.step()

    def rows(self, positions: Ids) -> Floats:
        """Return the rows at these positions, a copy."""
        found: Floats = self._table.weight.detach().numpy()[positions]
        return found


class FbgemmTable:
    """The same rows and steps in FBGEMM (SplitTableBatchedEmbeddingBagsCodegen), which trains in the backward.

    start (rows, dim): the initial rows, copied; pull (dim,): see train_step. Raises ImportError, and OSError if FBGEMM
    was built for another PyTorch.
    """

    def __init__(self, torch: Any, start: Floats, pull: Floats) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self._torch, self._pull = torch, torch.from_numpy(pull)
        self._table = SplitTableBatchedEmbeddingBagsCodegen(
            [(*start.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
        )
        self._table.split_embedding_weights()[0].copy_(torch.from_numpy(start))

    def train(self, positions: Ids) -> None:
        """Take one step on the rows at these positions."""
        values = self._table(self._torch.from_numpy(positions), self._torch.arange(len(positions) + 1))
        values.backward(values.detach() - self._pull)


# Also for the other benchmarks with PyTorch.


def import_torch(report: Report) -> Any:
    """Return the module torch, and note its version and threads in the report. Raises BadInput without PyTorch."""
    try:
        import torch
    except ImportError as error:
        advice = f"install it: {pip_install('torch')}"
        raise BadInput(f"kvemb bench {report.bench} needs PyTorch; {advice}") from error
    report.facts |= {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
    return torch


def budget_of_hot(rows: int, dim: int) -> int:
    """Return a memory budget in bytes in which so many float32 rows with one slot are all hot, with empty cells."""
    return 3 * rows * (8 * dim + 64) + (256 << 20)
