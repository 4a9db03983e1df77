"""`kvemb bench torch`: training steps of a module of kvemb.torch, all rows hot, compared with PyTorch's own.

A step looks up a batch of ids, takes the gradient that pulls every row towards one target, and updates. PyTorch's bags
have one id each, so a lookup gives one row for each id on both sides. kvemb's Adagrad is compared with
torch.optim.Adagrad, whose rows must be equal at the end, with SparseAdam, and with FBGEMM's fused row-wise Adagrad, if
FBGEMM (fbgemm-gpu-cpu) is installed. All take their steps in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kvemb
from kvemb.installed import pip_install
from kvemb.tools.bench.data import Floats, Ids, ids_of
from kvemb.tools.bench.hot.resident import Call, Resident, Side, resident
from kvemb.tools.bench.options import Batch, Dim, Folder, Rows, Runs, Steps
from kvemb.tools.bench.results import Report, compare_costs
from kvemb.tools.bench.trained import EPSILON, LEARNING_RATE, adagrad, target
from kvemb.tools.failures import BadInput

MIN_RATIO, MIN_OF_ADAM, MIN_OF_FBGEMM = 3.0, 5.0, 5.0
MAX_CPU = 0.3
# Arguments with which torch.optim.Adagrad takes the same steps as kvemb's Adagrad.
ADAGRAD = {"lr": LEARNING_RATE, "initial_accumulator_value": 0.0, "eps": EPSILON}


def run(
    rows: Rows = 1_000_000,
    dim: Dim = 64,
    batch: Batch = 65_536,
    steps: Steps = 5,
    runs: Runs = 9,
    folder: Folder = None,
) -> Report:
    """Train with all rows hot. Peers: PyTorch's sparse EmbeddingBag with Adagrad; FBGEMM, if installed."""
    torch, report = import_torch()
    pull = target(dim)
    with resident(rows, dim, folder, adagrad()) as pair:
        peer = TorchTable.adagrad(torch, pair.array, pull)
        adam, ours = TorchTable.sparse_adam(torch, pair.array, pull), Module(torch, pair.var, pull)
        sides: list[Side] = [ours.step, peer.step, adam.step]
        try:
            sides.append(FbgemmTable(torch, pair.array, pull).step)
        except (ImportError, OSError) as error:
            report.facts["fbgemm"] = f"not measured: {error}"
        else:
            report.facts["fbgemm"] = "measured"
        calls = pair.calls(runs, steps, batch)
        mine, *others = pair.measure(sides, calls)
        seen = np.unique(calls[-1][-1].positions)
        np.testing.assert_allclose(pair.var.lookup(ids_of(seen), touch=False), peer.rows(seen), rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(seen)
    bars = {
        "EmbeddingBag(sparse=True) + optim.Adagrad": MIN_RATIO,
        "EmbeddingBag(sparse=True) + SparseAdam": MIN_OF_ADAM,
        "FBGEMM, row-wise Adagrad": MIN_OF_FBGEMM,
    }
    for (name, least), other in zip(bars.items(), others, strict=False):
        rate, cpu = compare_costs("step", steps * batch, mine, name, other)
        report.lines.append(rate.ratio_at_least(least))
        if other is others[0]:
            report.lines.append(cpu.ratio_at_most(MAX_CPU))
    return report


class Module:
    """A module over a variable, and its optimizer. pull (dim,): see train_step."""

    def __init__(self, torch: Any, var: kvemb.Variable, pull: Floats) -> None:
        import kvemb.torch as kt

        self._torch, self._pull, self._table = torch, torch.from_numpy(pull), kt.Embedding(var)
        self._optimizer = kt.Optimizer(self._table)

    def step(self, pair: Resident, call: Call) -> None:
        """Take one step on the rows of a call."""
        values = self._table(self._torch.from_numpy(call.keys))
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

    def step(self, pair: Resident, call: Call) -> None:
        """Take one step on the rows of a call."""
        offsets = self._torch.arange(len(call.positions))
        self._optimizer.zero_grad()
        values = self._table(self._torch.from_numpy(call.positions), offsets)
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

    def step(self, pair: Resident, call: Call) -> None:
        """Take one step on the rows of a call."""
        offsets = self._torch.arange(len(call.positions) + 1)
        values = self._table(self._torch.from_numpy(call.positions), offsets)
        values.backward(values.detach() - self._pull)


def import_torch() -> tuple[Any, Report]:
    """Return the module torch, and a report with its version and threads. Raises BadInput without PyTorch."""
    try:
        import torch
    except ImportError as error:
        raise BadInput(f"this benchmark needs PyTorch; install it: {pip_install('torch')}") from error
    return torch, Report(facts={"torch": torch.__version__, "torch_threads": torch.get_num_threads()})
