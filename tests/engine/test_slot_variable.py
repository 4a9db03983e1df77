"""Slots are read by key, wherever their rows are, as tables of their own."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
from kvemb.errors import Closed
from kvemb.optimizers import Adam, Ftrl, RowWiseAdagrad


@pytest.fixture
def table(open_store, tmp_path):
    """A variable of 100 rows, 16 of them hot; row k took a step with gradients of k."""
    store = open_store(tmp_path / "store")
    made = store.get_variable("table", dim=3, hot_rows=16, initializer=2.0, optimizer=RowWiseAdagrad(0.5, 0.25))
    made.apply_gradients(np.arange(100), np.repeat(np.arange(100, dtype=np.float32)[:, None], 3, axis=1))
    return made


def test_a_slot_has_a_name_a_width_and_a_dtype(table, open_store, tmp_path):
    (slot,) = table.get_slot_variables()
    assert (slot.name, slot.dim, slot.value_dtype, slot.size()) == ("accumulator", 1, np.float32, 100)
    assert repr(slot) == "<slot 'accumulator' of 'table': 1 x float32>"
    other = open_store(tmp_path / "other").get_variable("half", dim=5, value_dtype="float16", optimizer=Adam())
    assert [(each.name, each.dim, each.value_dtype.name) for each in other.get_slot_variables()] == [
        *(("m", 5, "float32"), ("v", 5, "float32"), ("steps", 1, "float32"))
    ]
    assert other.resource_handle[0].get_variable("none", dim=1).get_slot_variables() == ()


def test_slots_are_those_of_rows_hot_and_cold(table):
    keys = np.array([[3, 99, 3], [0, 50, 1000]])
    hot = set(table.tables[0].keys().tolist())
    found = table.lookup_slot("accumulator", keys)
    np.testing.assert_array_equal(found, np.where(keys < 100, keys.astype(np.float32) ** 2, 0)[..., None] + 0.25)
    np.testing.assert_array_equal(table.get_slot_variables()[0].lookup(keys), found)
    assert set(table.tables[0].keys().tolist()) == hot
    assert table.lookup_slot("accumulator", 7).shape == (1,)
    assert table.lookup_slot("accumulator", []).shape == (0, 1)
    assert table.size() == 100


def test_slots_leave_with_their_row(table):
    table.remove([3])
    assert table.lookup_slot("accumulator", [3, 4]).tolist() == [[0.25], [16.25]]
    table.clear()
    assert table.lookup_slot("accumulator", [4]).tolist() == [[0.25]]
    assert table.get_slot_variables()[0].size() == 0


def test_what_is_missing_reads_as_a_new_row_would_start(open_store, tmp_path):
    made = open_store(tmp_path / "store").get_variable("t", dim=2, initializer=[1, -2], optimizer=Ftrl(0.5, -0.5, 0.25))
    assert made.lookup_slot("linear", [1]).tolist() == [[-1.0, 2.0]]
    made.apply_gradients([1], np.zeros((1, 2), np.float32))
    assert made.lookup([1]).tolist() == [[1.0, -2.0]]
    assert made.lookup_slot("linear", [1]).tolist() == [[-1.0, 2.0]]


def test_what_there_is_not_is_refused(table):
    with pytest.raises(
        ValueError, match=r"slot must be one of \['accumulator'\], the slots of RowWiseAdagrad.*, got 'm'"
    ):
        table.lookup_slot("m", [1])
    with pytest.raises(TypeError, match="keys must be int64"):
        table.lookup_slot("accumulator", [0.5])
    slot = table.get_slot_variables()[0]
    table.resource_handle[0].close()
    with pytest.raises(Closed):
        slot.lookup([1])
    with pytest.raises(Closed):
        slot.size()


def test_a_reader_sees_them(table, tmp_path):
    table.resource_handle[0].close()
    with kvemb.open(tmp_path / "store", read_only=True, memory_budget="4MiB") as store:
        assert store.variables["table"].lookup_slot("accumulator", [2]).tolist() == [[4.25]]
