"""`kvemb bench features`: steps through an EmbeddingBagCollection of many hot tables, compared with PyTorch's bags.

Each step looks up one id of each table for every example, takes the gradient of a sum, and updates. The peer is one
torch.nn.EmbeddingBag(sparse=True) for each table, and one torch.optim.Adagrad for all. Rows are compared at the end.
"""

from __future__ import annotations

import numpy as np

import kvemb
from kvemb.tools.bench.data import ids_of
from kvemb.tools.bench.hot.resident import array_of, budget_of_hot, measure_hot
from kvemb.tools.bench.hot.torch import ADAGRAD, import_torch
from kvemb.tools.bench.measure import scratch, seconds
from kvemb.tools.bench.options import Batch, Dim, Folder, Rows, Runs, Steps, Tables
from kvemb.tools.bench.results import Report, compare, compare_costs
from kvemb.tools.bench.trained import adagrad, load

MIN_RATIO, MAX_FIXED_US, SMALL_CALLS = 2.0, 40.0, 200


def run(
    tables: Tables = 26,
    rows: Rows = 40_000,
    dim: Dim = 16,
    batch: Batch = 4096,
    steps: Steps = 5,
    runs: Runs = 9,
    folder: Folder = None,
) -> Report:
    """Train an EmbeddingBagCollection of many tables, all hot. Peer: PyTorch's sparse EmbeddingBags."""
    torch, report = import_torch()
    import kvemb.torch as kt

    chance = np.random.default_rng(7)
    work = [[chance.integers(0, rows, (tables, batch)) for _ in range(steps)] for _ in range(runs)]
    budget = budget_of_hot(tables * rows, 8 * dim)
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget) as store:
        variables = {f"t{at}": store.get_variable(f"t{at}", dim=dim, optimizer=adagrad()) for at in range(tables)}
        for variable in variables.values():
            load(variable, rows)
        collection = kt.EmbeddingBagCollection(variables)
        optimizer = kt.Optimizer(collection)
        start = torch.from_numpy(array_of(rows, dim))
        bags = [
            torch.nn.EmbeddingBag.from_pretrained(start.clone(), freeze=False, mode="sum", sparse=True)
            for _ in variables
        ]
        peer = torch.optim.Adagrad([bag.weight for bag in bags], **ADAGRAD)
        offsets = torch.arange(batch)
        given = [[[torch.from_numpy(ids_of(part)) for part in step] for step in run] for run in work]
        places = [[[torch.from_numpy(part) for part in step] for step in run] for run in work]

        def ours(i: int) -> None:
            for step in given[i]:
                found = collection({name: (ids, offsets) for name, ids in zip(variables, step, strict=True)})
                torch.stack(list(found.values())).square().sum().backward()
                optimizer.step()

        def theirs(i: int) -> None:
            for step in places[i]:
                peer.zero_grad()
                found = [bag(ids, offsets) for bag, ids in zip(bags, step, strict=True)]
                torch.stack(found).square().sum().backward()
                peer.step()

        mine, other = measure_hot(store, (ours, theirs), runs)
        seen = np.unique(work[-1][-1][0])
        trained = variables["t0"].lookup(ids_of(seen), touch=False)
        np.testing.assert_allclose(trained, bags[0].weight.detach().numpy()[seen], rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(seen)
        one, key = variables["t0"], ids_of(np.zeros(1, np.int64))

        def small_calls() -> None:
            for _ in range(SMALL_CALLS):
                store.lookup({one: key})

        fixed = [seconds(small_calls) / SMALL_CALLS * 1e6 for _ in range(runs)]
    peer_name = "EmbeddingBag(sparse=True) each + optim.Adagrad"
    rate, cpu = compare_costs("step", steps, mine, peer_name, other, of="step")
    small = compare("lookup of one key of one table", "us", fixed).at_most(MAX_FIXED_US)
    report.lines = [rate.ratio_at_least(MIN_RATIO), cpu, small]
    return report
