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

from kvemb.installed import pip_install
from kvemb.tools.bench.data import Floats, ids_of
from kvemb.tools.bench.hot.resident import Call, Side, resident
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
    import kvemb.torch as kt

    pull, adam = torch.from_numpy(target(dim)), torch.optim.SparseAdam
    with resident(rows, dim, folder, adagrad()) as pair:
        table, bags, others = kt.Embedding(pair.var), _bags(torch, pair.array), _bags(torch, pair.array)
        sides = [
            _training(lambda call: table(torch.from_numpy(call.keys)), pull, kt.Optimizer(table).step),
            _training_bags(torch, bags, pull, torch.optim.Adagrad(bags.parameters(), **ADAGRAD)),
            _training_bags(torch, others, pull, adam(list(others.parameters()), lr=LEARNING_RATE)),
        ]
        try:
            sides.append(_fbgemm(torch, pair.array, pull))
        except (ImportError, OSError) as error:
            report.facts["fbgemm"] = f"not measured: {error}"
        else:
            report.facts["fbgemm"] = "measured"
        calls = pair.calls(runs, steps, batch)
        mine, *peers = pair.measure(sides, calls)
        seen = np.unique(calls[-1][-1].positions)
        trained = bags.weight.detach().numpy()[seen]
        np.testing.assert_allclose(pair.var.lookup(ids_of(seen), touch=False), trained, rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(seen)
    bars = {
        "EmbeddingBag(sparse=True) + optim.Adagrad": MIN_RATIO,
        "EmbeddingBag(sparse=True) + SparseAdam": MIN_OF_ADAM,
        "FBGEMM, row-wise Adagrad": MIN_OF_FBGEMM,
    }
    for (name, least), peer in zip(bars.items(), peers, strict=False):
        rate, cpu = compare_costs("step", steps * batch, mine, name, peer)
        report.lines.append(rate.ratio_at_least(least))
        if peer is peers[0]:
            report.lines.append(cpu.ratio_at_most(MAX_CPU))
    return report


def _training(forward: Callable[[Call], Any], pull: Any, update: Callable[[], object]) -> Side:
    """Return a side that takes a step towards pull (dim,) on the rows of a call."""

    def step(call: Call) -> None:
        values = forward(call)
        values.backward(values.detach() - pull)
        update()

    return step


def _bags(torch: Any, start: Floats) -> Any:
    """Return a module with the rows (n, dim), copied."""
    weight = torch.from_numpy(start.copy())
    return torch.nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=True)


def _training_bags(torch: Any, bags: Any, pull: Any, optimizer: Any) -> Side:
    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return _training(
        lambda call: bags(torch.from_numpy(call.positions), torch.arange(len(call.positions))), pull, update
    )


def _fbgemm(torch: Any, start: Floats, pull: Any) -> Side:
    """Return a side on SplitTableBatchedEmbeddingBagsCodegen, which trains in the backward. start: as for _bags.

    Raises ImportError, and OSError if FBGEMM was built for another PyTorch.
    """
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(*start.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=LEARNING_RATE,
        eps=EPSILON,
    )
    table.split_embedding_weights()[0].copy_(torch.from_numpy(start))
    return _training(
        lambda call: table(torch.from_numpy(call.positions), torch.arange(len(call.positions) + 1)),
        pull,
        lambda: None,
    )


def import_torch() -> tuple[Any, Report]:
    """Return the module torch, and a report with its version and threads. Raises BadInput without PyTorch."""
    try:
        import torch
    except ImportError as error:
        raise BadInput(f"this benchmark needs PyTorch; install it: {pip_install('torch')}") from error
    return torch, Report(facts={"torch": torch.__version__, "torch_threads": torch.get_num_threads()})
