"""What the suite of contracts.HotTable is made of: every implementation, and rows whose bytes tell their keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_devices import DEVICES
from cuda_on_cpu import CudaOnCpuTable, require_compiler

from kvemb import registry
from kvemb.backends.cpu import CpuTable
from kvemb.errors import BackendUnavailable
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.schema import Schema

LEAST, MOST = -(2**63), 2**63 - 1
KINDS = ["cpu", "cuda-on-cpu", *DEVICES[1:]]
EXTREMES = np.array([0, -1, 1, LEAST, LEAST + 1, MOST, MOST - 1, 2**32, -(2**32), 255, 2**24])


def many(kind: Any) -> int:
    """The rows of a large batch: above CpuTable's threshold for several threads; others have none."""
    return 40_000 if kind is CpuTable else 4_000


def table_kind(name: str) -> Any:
    """A HotTable class."""
    if name == "cuda-on-cpu":
        require_compiler()
        return CudaOnCpuTable
    return registry.hot_table(name)


def available(name: str) -> Any:
    """A HotTable class; the test is skipped if this machine lacks it."""
    try:
        kind = table_kind(name)
        kind.memory(name)
        return kind
    except BackendUnavailable as error:
        pytest.skip(str(error))


def rows_of(schema: Schema, keys: Any, scores: Any = 0.0, *, dirty: Any = False) -> RowBlock:
    """Rows whose bytes are made from their keys, so that a mixed-up row shows."""
    block = RowBlock(schema, len(keys))
    block.keys[:] = keys
    block.scores[:] = scores
    block.steps[:] = block.keys // 3
    block.flags[:] = np.where(dirty, DIRTY, 0)
    with np.errstate(over="ignore"):
        for word in range(schema.row_words):
            block.words[:, word] = (block.keys.view(np.uint64) + np.uint64(word)) * np.uint64(0x9E3779B97F4A7C15)
    return block


def assert_holds(table: Any, rows: RowBlock) -> None:
    """Assert that the table holds these rows, every column as given."""
    cells = table.find(rows.keys)
    assert (cells >= 0).all()
    assert_same(table.read(cells), rows)


def assert_same(got: RowBlock, expected: RowBlock) -> None:
    for column in ("keys", "scores", "steps", "flags", "words"):
        np.testing.assert_array_equal(getattr(got, column), getattr(expected, column), err_msg=column)


def random_keys(count: int, seed: int = 0) -> Any:
    keys = np.unique(np.random.default_rng(seed).integers(LEAST, MOST, count + 8, dtype=np.int64))
    return np.random.default_rng(seed + 1).permutation(keys)[:count]


def one_bucket(kind: Any, schema: Schema) -> Any:
    """A table of one bucket, which does not grow."""
    return kind(schema, kind.cells_per_bucket, kind.cells_per_bucket)
