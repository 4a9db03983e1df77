"""Optimizers that cover every formula of kvemb, rows for them, and a comparison of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from schemas import dtype_named

from kvemb.backends.cpu_rows import CpuRows
from kvemb.optimizers import (
    KINDS,
    LAMB,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    AMSGrad,
    Ftrl,
    Lion,
    Momentum,
    NAdam,
    Nesterov,
    Optimizer,
    PartialRowWiseAdam,
    ProximalAdagrad,
    ProximalSGD,
    RMSProp,
    RowWiseAdagrad,
)
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Sums
from kvemb.rows.schema import Schema, dtype_of

# Every formula, and every way to combine two.
EVERY = [
    *(kind(learning_rate=0.1) for kind in KINDS.values()),
    *(Adagrad(0.1, 0.1, 1e-7, clip_value=1.0, clip_norm=0.5, weight_decay=0.1), RowWiseAdagrad(0.1, 0.5, clip_norm=1)),
    *(SGD(0.1, weight_decay=0.1, decoupled=True), Momentum(0.1, weight_decay=0.1), Nesterov(0.1, clip_value=0.3)),
    *(RMSProp(momentum=0.5), RMSProp(centered=True), RMSProp(momentum=0.5, centered=True, weight_decay=0.1)),
    *(Adam(0.01, 0.0, 0.5, 0.0), Adam(0.1, 0.999999, 0.999999, 1e-3), Adam(0.1, bias_correction="global")),
    *(Adam(0.1, epsilon=1e-3, bias_correction="global", epsilon_hat=True), AdamW(0.1, epsilon=1.0, epsilon_hat=True)),
    AMSGrad(0.1, epsilon=1e-3, epsilon_hat=True),
    *(
        NAdam(momentum_decay=0.5, bias_correction="global"),
        LAMB(weight_decay=0.1),
        PartialRowWiseAdam(weight_decay=0.1),
    ),
    *(Ftrl(0.1, -0.3, 0.0, 0.1, 0.2), Ftrl(0.1, 0.0), ProximalSGD(0.1, 0.5, 0.5), ProximalAdagrad(0.1, 0.1, 0.5, 0.5)),
    Lion(weight_decay=0.1),
]
QUICK = [Adam(0.1, epsilon_hat=True), EVERY[len(KINDS)], RMSProp(centered=True), LAMB(0.1)]
SHAPES = [("float32", 17), ("float64", 32), ("float16", 3), ("bfloat16", 20)]


def block_of(optimizer: Optimizer, dtype: str, dim: int, rows: int) -> RowBlock:
    """New rows with random embeddings."""
    block = RowBlock(Schema(dtype_of("int64"), dtype_named(dtype), dim, optimizer.shapes(dim)), rows)
    start = np.random.default_rng(dim).normal(size=(rows, dim)).astype(block.schema.value_dtype)
    CpuRows().assign(block, np.arange(rows), start, 0)
    for at, slot in enumerate(optimizer.slots):
        block.slot(at)[:] = slot.initial
    return block


def single(count: int) -> Sums:
    """Return the sums of which key i has row i only."""
    return Sums(np.arange(count), np.full(count, -1))


def assert_same(got: Any, expected: Any) -> None:
    """Whether arrays are equal bit for bit; any NaN equals any other."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    wide = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(wide[0]), np.isnan(wide[1]))
    same = ~np.isnan(wide[0])
    assert got[same].tobytes() == expected[same].tobytes()
