"""`kvemb bench pool`: sums of bags of random rows of a hot table, compared with PyTorch's embedding_bag.

The latter gets an array of the same rows, and positions in it; without PyTorch the peer is np.take and np.add.reduceat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import Floats, Ids
from kvemb.tools.bench.hot.resident import Call, Resident, by_dim
from kvemb.tools.bench.options import Batches, Dims, Folder, Rows, Runs
from kvemb.tools.bench.results import Comparison, Report, compare_costs
from kvemb.tools.limits import MAX_BATCH

MIN_RATIO = 1.5
DIMS = [16, 64]


def run(
    rows: Rows = 4_000_000,
    dim: Dims = DIMS,
    bags: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Bags per call.")] = 4_096,
    bag: Annotated[int, typer.Option(min=1, max=1_000, help="Ids in a bag.")] = 20,
    batches: Batches = 10,
    runs: Runs = 9,
    folder: Folder = None,
) -> Report:
    """Sum bags of random rows, all hot. Peer: PyTorch's embedding_bag, or NumPy if PyTorch is not installed."""
    offsets = np.arange(0, bags * bag, bag)

    def lines(pair: Resident) -> list[Comparison]:
        calls = pair.calls(runs, batches, bag * bags)
        name, pool = _peer(pair.array, offsets)

        def ours(call: Call) -> Floats:
            found: Floats = kvemb.embedding_lookup_sparse(pair.var, call.keys, offsets, combiner="sum").values
            return found

        np.testing.assert_allclose(ours(calls[0][0]), pool(calls[0][0].positions), rtol=1e-4, atol=1e-5)
        mine, peer = pair.measure((ours, lambda call: pool(call.positions)), calls)
        rate, cpu = compare_costs(f"bags of {bag}, dim {pair.dim}", batches * bag * bags, mine, name, peer)
        return [rate.ratio_at_least(MIN_RATIO), cpu]

    return by_dim(rows, dim, folder, lines)


def _peer(array: Floats, offsets: Ids) -> tuple[str, Callable[[Ids], Floats]]:
    """Return the peer's name, and a function from positions in the array to pooled rows."""
    try:
        import torch
    except ImportError:
        reduced = "np.take and np.add.reduceat"
        return reduced, lambda positions: np.add.reduceat(np.take(array, positions, axis=0), offsets)
    rows, begins = torch.from_numpy(array), torch.from_numpy(offsets)

    def pool(positions: Ids) -> Floats:
        bags: Floats = torch.nn.functional.embedding_bag(torch.from_numpy(positions), rows, begins, mode="sum").numpy()
        return bags

    return f"embedding_bag of PyTorch {torch.__version__}", pool
