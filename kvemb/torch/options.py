"""Checks of the arguments of torch.nn's embeddings that are supported; the others are refused by name."""

from __future__ import annotations

from typing import Any

import torch

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_number
from kvemb.initializers import RandomNormal

# How torch.nn's embeddings begin.
INITIAL = RandomNormal(0.0, 1.0)
MODES = ("sum", "mean", "max")
_OUTPUTS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Arguments of torch.nn that are not supported; the message says what to use instead.
REFUSED = {
    "num_embeddings": "keys are any int64, and a row is made at its first step; give a name and dim",
    "embedding_dim": "give dim",
    "lr": "give optimizer, such as kvemb.optimizers.Adagrad(0.05)",
    "learning_rate": "give optimizer, such as kvemb.optimizers.Adagrad(0.05)",
    "pooling": "give mode, such as 'sum', to the module",
    "_weight": "make the module with from_pretrained(weight, name, freeze=False)",
    "_freeze": "make the variable with trainable=False, or call requires_grad_(False)",
    "freeze": "make the variable with trainable=False, or call requires_grad_(False)",
    "dtype": "give value_dtype, such as 'float32'",
    "device": "rows live in the store; give devices, and move ids and results",
}


def check_mode(mode: Any) -> str:
    """Return a mode of bags. Raises ValueError."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {brief(mode)}")
    return str(mode)


def check_output(dtype: Any) -> None:
    """Raise ValueError unless results can have a dtype; None: that of the rows."""
    if dtype is not None and dtype not in _OUTPUTS:
        raise ValueError(f"output_dtype must be a torch float dtype or None, got {brief(dtype)}")


def check_norm(max_norm: Any, norm_type: Any) -> tuple[float | None, float]:
    """Return the largest norm of a row, and the exponent of the norm. Raises TypeError, ValueError."""
    most = None if max_norm is None else as_number(max_norm, "max_norm")
    kind = as_number(norm_type, "norm_type")
    if most is not None and not most > 0:
        raise ValueError(f"max_norm must be above 0, or None, got {brief(max_norm)}")
    if not kind > 0:
        raise ValueError(f"norm_type must be above 0, got {brief(norm_type)}")
    return most, kind


def clipped(rows: torch.Tensor, max_norm: float | None, norm_type: float) -> torch.Tensor:
    """Return rows (n, dim), with those of a larger norm scaled to max_norm. Differentiable; the table does not change.

    As TensorFlow's embedding_lookup(max_norm=); torch.nn's changes the table.
    """
    if max_norm is None:
        return rows
    norms = torch.linalg.vector_norm(rows, norm_type, dim=1, keepdim=True)
    scale = max_norm / norms.clamp_min(max_norm)
    return rows * scale
