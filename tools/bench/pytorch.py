"""Shared by the benchmarks with PyTorch: the import, the facts of a report, and an optimizer equal to kvemb's."""

from __future__ import annotations

from typing import Any

from kvemb.installed import pip_install
from kvemb.tools.bench.results import Report
from kvemb.tools.bench.train import EPSILON, LEARNING_RATE
from kvemb.tools.failures import BadInput

# Arguments with which torch.optim.Adagrad takes the same steps as kvemb's Adagrad.
ADAGRAD = {"lr": LEARNING_RATE, "initial_accumulator_value": 0.0, "eps": EPSILON}


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
