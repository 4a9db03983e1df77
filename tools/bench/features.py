"""`kvemb bench features`: steps through an EmbeddingBagCollection of many hot tables, compared with PyTorch's bags.

Each step looks up one id of each table for every example, takes the gradient of a sum, and updates. The peer is one
torch.nn.EmbeddingBag(sparse=True) for each table, and one torch.optim.Adagrad for all. Rows are compared at the end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, measure_alternately, scratch, seconds
from kvemb.tools.bench.results import Comparison, Report, Spread, compare, compare_cost
from kvemb.tools.bench.torch import ADAGRAD, budget_of_hot, import_torch
from kvemb.tools.bench.train import EPSILON, LEARNING_RATE, LOAD_BATCH

MIN_RATIO, MAX_FIXED_US, SMALL_CALLS = 2.0, 40.0, 200


def run(tables: int, rows: int, dim: int, batch: int, steps: int, runs: int, folder: Path | None) -> Report:
    """Time `runs` runs of `steps` steps on `tables` tables of `rows` rows. Raises BadInput without PyTorch."""
    settings: dict[str, object] = {"tables": tables, "rows": rows, "dim": dim, "batch": batch, "steps": steps}
    report = Report("features", {**settings, "runs": runs})
    torch = import_torch(report)
    import kvemb.torch as kt

    report.facts["compile_s"] = compile_seconds(dim)
    chance = np.random.default_rng(7)
    work = [[chance.integers(0, rows, (tables, batch)) for _ in range(steps)] for _ in range(runs)]
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_of_hot(tables * rows, dim)) as store:
        rule = kvemb.optimizers.Adagrad(LEARNING_RATE, 0.0, EPSILON)
        start = np.concatenate([values_of(ids, dim) for ids in batches_of_ids(rows, LOAD_BATCH)])
        variables = {f"t{at}": store.get_variable(f"t{at}", dim=dim, optimizer=rule) for at in range(tables)}
        for variable in variables.values():
            for at, ids in zip(range(0, rows, LOAD_BATCH), batches_of_ids(rows, LOAD_BATCH), strict=True):
                variable.upsert(ids, start[at : at + len(ids)])
        collection = kt.EmbeddingBagCollection(variables)
        optimizer = kt.Optimizer(collection)
        bags = [
            torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(start.copy()), freeze=False, mode="sum", sparse=True)
            for _ in variables
        ]
        parameters = [bag.weight for bag in bags]
        peer = torch.optim.Adagrad(parameters, **ADAGRAD)
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

        measure_alternately((ours, theirs), 1)  # warm up
        mine, other = measure_alternately((ours, theirs), runs)
        seen = np.unique(work[-1][-1][0])
        trained = variables["t0"].lookup(ids_of(seen), touch=False)
        np.testing.assert_allclose(trained, parameters[0].detach().numpy()[seen], rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(seen)
        fixed = [seconds(lambda _: _small_calls(store, variables), i) / SMALL_CALLS * 1e6 for i in range(runs)]
    rates = [[steps / each.wall for each in side] for side in (mine, other)]
    cpu = [[1e3 * each.cpu / steps for each in side] for side in (mine, other)]
    name, cost = "EmbeddingBag(sparse=True) each + optim.Adagrad", Spread.of(fixed)
    report.lines = [
        compare("step", "steps/s", rates[0], name, rates[1], MIN_RATIO),
        compare_cost("CPU of a step", "ms", cpu[0], name, cpu[1]),
        Comparison(
            "lookup of one key of one table", "us", cost, bar=f"≤ {MAX_FIXED_US:g}", met=cost.median <= MAX_FIXED_US
        ),
    ]
    return report


def _small_calls(store: kvemb.Store, variables: dict[str, kvemb.Variable]) -> None:
    one, key = next(iter(variables.values())), ids_of(np.zeros(1, np.int64))
    for _ in range(SMALL_CALLS):
        store.lookup({one: key})
