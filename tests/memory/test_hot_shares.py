"""What a variable's hot tables have of a budget is what the budget counts, however they grow and shrink."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from kvemb import registry
from kvemb.memory.budget import Budget
from kvemb.memory.hot_shares import GIVEN_CELLS, HotShares
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.schema import Schema, dtype_of

SCHEMA = Schema(dtype_of("int64"), dtype_of("float32"), 2)
MIB = 1 << 20


def shares_of(count=2, cells=64, min_rows=32, budget=None):
    budget = budget or Budget(16 * MIB)
    tables = [registry.hot_table("cpu")(SCHEMA, cells, 1 << 17) for _ in range(count)]
    budget.reserve(sum(table.nbytes for table in tables), "tables")
    return tables, budget, HotShares(tables, [budget] * count, min_rows)


def rows_of(keys):
    rows = RowBlock(SCHEMA, len(keys))
    rows.keys[:] = rows.scores[:] = keys
    rows.flags[:] = DIRTY
    return rows


def test_growth_is_taken_from_the_budget_and_the_end_gives_all_of_it_back():
    (table, other), budget, memory = shares_of()
    assert len(table.insert(rows_of(np.arange(5000)), reserve=memory.reserve(table))) == 0
    assert budget.free == 16 * MIB - table.nbytes - other.nbytes
    memory.end()
    assert budget.free == 16 * MIB


def test_tables_of_a_fixed_size_neither_grow_nor_give():
    (table, _), budget, memory = shares_of(min_rows=None)
    assert memory.reserve(table) is None
    assert budget.rebalancer.shares == []
    assert list(memory.shrink()) == []
    memory.end()
    assert budget.free == 16 * MIB


def test_cells_are_given_up_some_at_a_time_down_to_the_least():
    (table,), budget, memory = shares_of(1)
    memory.make_room(4 * GIVEN_CELLS)
    assert 4 * GIVEN_CELLS <= table.capacity_rows < 1.05 * 4 * GIVEN_CELLS
    table.insert(rows_of(np.arange(3 * GIVEN_CELLS)))
    (share,) = budget.rebalancer.shares
    share.ask(share.held)
    share.notify()
    assert memory.has_work
    left, before = 0, table.size
    while memory.has_work:
        memory.measure()
        capacity = table.capacity_rows
        left += sum(len(rows) for _, rows in memory.shrink())
        assert 0 < capacity - table.capacity_rows <= GIVEN_CELLS
        assert share.held == table.nbytes
    assert (table.capacity_rows, share.owed) == (32, 0)
    assert left + table.size == before
    assert budget.free == 16 * MIB - table.nbytes


def test_memory_is_given_back_where_the_rows_that_leave_are_refused():
    (table,), budget, memory = shares_of(1)
    budget.rebalancer.shares[0].ask(1)
    with pytest.raises(OSError, match="disk"):
        list(map(Mock(side_effect=OSError("disk")), memory.shrink()))
    assert table.capacity_rows < 64
    assert budget.free == 16 * MIB - table.nbytes


def test_a_table_that_may_not_grow_now_asks_for_nothing():
    (table,), budget, memory = shares_of(1)
    with memory.not_growing():
        assert memory.reserve(table) is None
    assert memory.reserve(table) is not None
    memory.offered(table, np.arange(10), np.ones(10))
    assert budget.rebalancer.work == 0


def test_rows_offered_to_a_table_that_was_refused_are_work():
    (table,), budget, memory = shares_of(1, budget=Budget(8192))
    table.insert(rows_of(np.arange(5000)), reserve=memory.reserve(table))
    memory.offered(table, np.arange(5000), np.ones(5000))
    assert budget.rebalancer.work == 5000
    assert memory.has_work, "a turn has ended"
    memory.measure()
    assert not memory.has_work
