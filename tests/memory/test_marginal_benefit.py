"""The marginal benefit of cells: the part of the least valuable ones whose rows were used since they were chosen."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from kvemb import registry
from kvemb.memory import marginal_benefit
from kvemb.memory.marginal_benefit import ENOUGH_USES, MAX_WAITS, SAMPLE_CELLS, MarginalBenefit
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema, dtype_of

SCHEMA = Schema(dtype_of("int64"), dtype_of("float32"), 2)


def table_of(rows: int, cells: int) -> Any:
    """A table of the rows that it keeps of so many, whose scores are their keys."""
    table = registry.hot_table("cpu")(SCHEMA, cells, cells)
    block = RowBlock(SCHEMA, rows)
    block.keys[:] = block.scores[:] = np.arange(rows)
    assert len(table.insert(block)) == 0
    return table


def full_table(cells: int) -> tuple[Any, Any]:
    """A table without an empty cell, and its keys from the lowest score on."""
    table = table_of(12 * cells, cells)
    assert table.size == cells
    return table, np.sort(table.keys())


def measured(cells: int = 4096) -> tuple[Any, Any, MarginalBenefit]:
    """The same, and its benefit after the first look."""
    table, keys = full_table(cells)
    benefit = MarginalBenefit(table)
    benefit.measure(0, 0.0)
    return table, keys, benefit


def use(table: Any, keys: Any) -> None:
    cells = table.find(keys)
    table.set_scores(cells, table.scores(cells) + 1e6)


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5])
def test_it_is_the_rate_at_which_the_lowest_scores_are_used(part):
    table, keys = full_table(4096)
    benefit = MarginalBenefit(table)
    assert benefit.measure(10, 0.0) is None
    use(table, keys[:1024][np.arange(1024) % 4 < 4 * part])
    assert benefit.measure(110, 0.0) == pytest.approx(-math.log(1 - part) / 100, rel=1e-9)


def test_uses_of_higher_scores_do_not_count_and_rows_that_left_count_if_they_are_wanted_again():
    table, keys, benefit = measured()
    use(table, keys[1024:])
    table.remove(table.find(keys[:512]))
    wanted = np.concatenate([keys[:256], keys[:256], keys[1024:], -keys])
    benefit.offered(wanted, wanted + 0.5)  # a score is the key, until a use changes it
    # The others come back with the score that they had: an optimizer step after the lookup of the same batch offers
    # rows that the lookup's other rows evicted. That is no use.
    benefit.offered(keys[256:512], keys[256:512].astype(np.float64))
    assert benefit.measure(100, 0.0) == pytest.approx(-math.log(1 - 0.25) / 100, rel=1e-9)
    unused = [benefit.measure(100 + at, 0.0) for at in range(1, MAX_WAITS + 1)]
    assert unused[-1] == pytest.approx(-math.log(1 - 0.25) / 200, rel=1e-9)


def test_empty_cells_are_worth_nothing():
    table = table_of(3000, 4096)
    benefit = MarginalBenefit(table)
    benefit.measure(0, 0.0)
    use(table, np.arange(3000))
    assert benefit.measure(100, 0.0) == 0.0
    empty = MarginalBenefit(registry.hot_table("cpu")(SCHEMA, 64, 64))
    assert empty.measure(0, 0.0) is None
    assert empty.measure(9, 0.0) == 0.0


def test_looks_are_averaged_and_one_without_work_between_changes_nothing():
    table, keys, benefit = measured()
    use(table, keys[:1024:2])
    first = benefit.measure(100, 0.0)
    assert benefit.measure(100, 0.0) == first
    lowest = keys[np.argsort(table.scores(table.find(keys)))][:1024]
    use(table, lowest)
    second = -math.log(1 / 2048) / 100
    assert benefit.measure(200, 10.0) == pytest.approx((first + second + 0.1) / 2), "misses count as well"


def test_a_few_uses_say_little_so_more_are_waited_for():
    table, keys, benefit = measured()
    use(table, keys[:1024:2])
    first = benefit.measure(100, 0.0)
    lowest = keys[np.argsort(table.scores(table.find(keys)))][:1024]
    for at in range(1, MAX_WAITS - 1):
        use(table, lowest[at : at + 1])
        assert benefit.measure(100 + at, 0.0) == first
    use(table, lowest[: 2 * ENOUGH_USES])
    assert benefit.measure(200, 0.0) == pytest.approx((first - math.log(1 - 2 * ENOUGH_USES / 1024) / 100) / 2)


def test_a_large_table_is_sampled():
    table, keys, benefit = measured(16 * SAMPLE_CELLS)
    use(table, keys[: len(keys) // 4 : 2])
    assert benefit.measure(1, 0.0) == pytest.approx(math.log(2), rel=0.1)


def test_a_look_without_memory_goes_on_watching_the_same_rows(monkeypatch):
    table, keys, benefit = measured()
    use(table, keys[1024:])  # so that other rows have the lowest scores
    table.remove(table.find(keys[:512]))
    with monkeypatch.context() as patched:
        patched.setattr(marginal_benefit, "KeyIndex", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            benefit._watch(50)
    benefit.offered(keys[:256], keys[:256] + 0.5)
    assert benefit.measure(100, 0.0) == pytest.approx(-math.log(1 - 0.25) / 100, rel=1e-9)
