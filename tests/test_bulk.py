"""Whole rows in and out, against a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import DIM, KEY, VALUE, merged, model_of, rows, table_of

import kvemb
from kvemb import bulk
from kvemb.bulk import Rows
from kvemb.errors import Closed, ReadOnly
from kvemb.limits import Limits
from kvemb.rows.schema import KEY_DTYPES


def edges(dtype: str) -> Any:
    limits = np.iinfo(dtype)
    return st.one_of(st.integers(int(limits.min), int(limits.max)), st.integers(0, 20))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(sorted(KEY_DTYPES)), conflict=st.sampled_from(["replace", "keep"]))
def test_any_rows_in_any_order_come_back(tmp_path_factory, data, dtype, conflict):
    small = Limits(sort_bytes=400, table_file_bytes=400, scan_rows=7)
    keys = st.lists(edges(dtype), max_size=25)
    with kvemb.open(tmp_path_factory.mktemp("bulk") / "store", memory_budget="4MiB", limits=small) as store:
        table, model, version = table_of(store, dtype), {}, 0
        for _ in range(data.draw(st.integers(1, 3))):
            batches = []
            for given_keys in data.draw(st.lists(keys, max_size=5)):
                version += 1
                batches.append(rows(given_keys, version, dtype))
            before = len(model)
            model = merged(model, batches, conflict)
            done = bulk.load(table, iter(batches), on_conflict=conflict)
            assert done.added == len(model) - before
            assert done.added + done.replaced + done.kept + done.duplicates == sum(map(len, batches))
            assert model_of(bulk.scan(table, 5)) == model
            assert table.size() == len(model)
        first, last = sorted([data.draw(edges(dtype)), data.draw(edges(dtype))])
        part = {key: row for key, row in model.items() if first <= key <= last}
        assert model_of(bulk.scan(table, 3, first=first, last=last)) == part
        for n in (1, 3, 50):
            found = bulk.ranges(table, n)
            assert 1 <= len(found) <= n
            assert (
                model_of(each for ends in found for each in bulk.scan(table, 4, first=ends[0], last=ends[1])) == model
            )
        store.check()


def test_rows_that_say_no_more_are_as_new_ones(store):
    table = table_of(store)
    table.upsert([1], np.ones((1, DIM), np.float32))
    bulk.load(table, [Rows(np.array([2]), np.ones((1, DIM), np.float32))])
    one, two = (next(bulk.scan(table, first=key, last=key)) for key in (1, 2))
    assert one.slots["accumulator"].tolist() == two.slots["accumulator"].tolist() == [[0.25, 0.25]]
    assert one.scores.tolist() == two.scores.tolist()


def test_other_arguments_are_checked(store, open_store, tmp_path):
    table = table_of(store)
    with pytest.raises(ValueError, match="on_conflict must be"):
        bulk.load(table, [], on_conflict="maybe")
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="n must be at least 1"):
            bulk.scan(table, wrong)
        with pytest.raises(ValueError, match="n must be at least 1"):
            bulk.ranges(table, wrong)
    store.flush()
    with open_store(tmp_path / "store", read_only=True) as reader, pytest.raises(ReadOnly):
        bulk.load(reader.variables["table"], [])
    store.close()
    with pytest.raises(Closed):
        bulk.load(table, [])


def test_bounds_beyond_every_key_are_no_keys(store):
    table = table_of(store)
    other = store.get_variable("other", "uint64", dim=DIM)
    ends = np.array([-(2**63), 0, 2**63 - 1])
    bulk.load(table, [rows(ends, 1)])
    bulk.load(other, [Rows(np.array([0, 2**64 - 1], np.uint64), np.zeros((2, DIM), np.float32))])
    for variable, bounds in (
        (table, {"first": 2**63}),
        (table, {"last": -(2**63) - 1}),
        (other, {"last": -5}),
        (other, {"first": 2**64}),
        (table, {"first": 5, "last": 1}),
    ):
        assert list(bulk.scan(variable, **bounds)) == []
    assert sum(map(len, bulk.scan(table, first=-(2**70), last=2**70))) == 3
    with pytest.raises(TypeError):
        bulk.scan(table, first=1.9)


@pytest.mark.parametrize("durability", ["checkpoint", "write"])
def test_counting_goes_on_from_the_last_step_that_can_be_loaded(open_store, tmp_path, durability):
    store = open_store(tmp_path / "store", durability=durability)
    table = table_of(store)
    bulk.load(table, [Rows(KEY, VALUE, steps=np.array([2**61]))])
    table.lookup(KEY)
    table.upsert(KEY, VALUE)
    description = bulk.described(table)
    assert description["step"] == 2**61 + 1
    with pytest.raises(ValueError, match="step must be at most 2305843009213693952"):
        bulk.make(store, "other", description)
    assert list(store.variables) == [table.name]
    bulk.make(store, "other", {**description, "step": 2**61}).lookup(KEY)
    store.close()
    again = open_store(tmp_path / "store", durability=durability)
    assert next(bulk.scan(again.variables[table.name])).steps.tolist() == [2**61 + 1]


def test_restrict_tells_how_far_it_has_come(store):
    table = store.get_variable("table", dim=DIM, hot_rows=64, restrict_policy=kvemb.FrequencyRestrictPolicy())
    bulk.load(table, [Rows(np.arange(500), np.zeros((500, DIM), np.float32), scores=np.arange(500.0))])
    told: list[tuple[int, int]] = []
    assert bulk.restrict(table, 200, progress=lambda done, total: told.append((done, total))) == 300
    assert told[-1] == (800, 800)
    assert table.export()[0].tolist() == list(range(300, 500))
    assert bulk.restrict(table, 200) == 0
    with pytest.raises(ValueError, match="has no restrict policy"):
        bulk.restrict(store.get_variable("other", dim=1), 5)


def test_compacting_gives_room_back(store):
    table = table_of(store)
    for version in range(5):
        bulk.load(table, [rows(np.arange(5000), version)])
    bulk.load(table, [rows([-1], 1)])
    table.remove(np.arange(2500))
    before = table.stats.bytes_cold
    found = model_of(bulk.scan(table))
    told: list[tuple[int, int]] = []
    bulk.compact(store, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (table.size(), table.size())
    assert table.stats.bytes_cold < before / 3
    assert model_of(bulk.scan(table)) == found
