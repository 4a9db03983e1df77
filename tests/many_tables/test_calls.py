"""One call on many variables: the same as one call each, all arguments checked first, failures named."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import numpy as np
import pytest
from small_tables import NAMES, make_table

import kvemb
from kvemb.errors import Closed, ColdStoreError, ReadOnly
from kvemb.handle import inside
from kvemb.many_tables import calls
from kvemb.operations import reads


def draw(seed):
    return [np.random.default_rng([seed, number]).integers(0, 120, (5, 8)) for number in range(3)]


# Small limits: the same calls over threads.
OVER_THREADS = pytest.mark.limits(hot_parallel_keys=1, step_parallel_keys=1, cold_parallel_keys=1)
IN_PARTS = pytest.mark.limits(call_rows=7)


@pytest.mark.parametrize(
    "how", ["at once", pytest.param("over threads", marks=OVER_THREADS), pytest.param("in parts", marks=IN_PARTS)]
)
def test_it_does_what_a_call_for_each_does(store, tables, open_store, tmp_path, how):
    other = open_store(tmp_path / "other")
    alone = [make_table(other, name, table.dim) for name, table in zip(NAMES, tables, strict=True)]
    for step in range(6):
        keys = draw(step)
        rows = store.lookup(dict(zip(tables, keys, strict=True)), touch=step % 2 == 0)
        assert list(rows) == tables
        for table, each, wanted in zip(tables, alone, keys, strict=True):
            np.testing.assert_array_equal(rows[table], each.lookup(wanted, touch=step % 2 == 0))
        store.prefetch(dict(zip(NAMES, draw(step + 1), strict=True)))
        store.apply_gradients({name: (k, rows[t] - 1) for name, t, k in zip(NAMES, tables, keys, strict=True)})
        for table, each, wanted in zip(tables, alone, keys, strict=True):
            each.apply_gradients(wanted, rows[table] - 1)
    for table, each in zip(tables, alone, strict=True):
        for got, expected in zip(
            table.export(with_slots=True, with_scores=True), each.export(with_slots=True, with_scores=True), strict=True
        ):
            np.testing.assert_equal(got, expected)
        assert table.stats.hits + table.stats.misses == each.stats.hits + each.stats.misses


def test_names_stand_for_variables_and_open_them(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        make_table(store, "a", 2)
    store = open_store(tmp_path / "store")
    rows = store.lookup({"a": 7})
    np.testing.assert_array_equal(rows["a"], [14, 15])
    assert rows["a"].shape == (2,)
    assert store.lookup({}) == {}
    store.apply_gradients({})


@pytest.mark.parametrize("over_threads", [False, pytest.param(True, marks=OVER_THREADS)])
def test_a_failed_part_stops_no_other_and_is_named(store, tables, monkeypatch, over_threads):
    failing = Mock(side_effect=ColdStoreError("the disk is gone"))
    monkeypatch.setattr(inside(tables[1]).operations, "_apply", failing)
    with pytest.raises(ColdStoreError, match="the disk is gone") as caught:
        store.apply_gradients({table: ([500], np.ones((1, table.dim), np.float32)) for table in tables})
    assert caught.value.__notes__ == ["variable 'b'"]
    assert [table.size() for table in tables] == [101, 100, 101]


@pytest.mark.parametrize("over_threads", [False, pytest.param(True, marks=OVER_THREADS)])
def test_the_misses_of_all_variables_are_read_in_one_job_and_a_failed_read_is_named(
    store, tables, monkeypatch, over_threads
):
    jobs, usual = [], reads.read_together
    monkeypatch.setattr(reads, "read_together", lambda searches: jobs.append(len(searches)) or usual(searches))
    keys, before = {table: np.arange(1000, 1010) for table in tables}, [table.stats for table in tables]
    store.lookup(keys)
    assert jobs == [3]
    for table, earlier in zip(tables, before, strict=True):
        done = table.stats - earlier
        assert done.seconds_lookup > done.seconds_cold_read > 0
    monkeypatch.setattr(inside(tables[1]).storage.cold, "fill", Mock(side_effect=ColdStoreError("the disk is gone")))
    keys = {table: np.arange(2000, 2010) for table in tables}
    out = {table: np.full((10, table.dim), np.nan, np.float32) for table in tables}
    with pytest.raises(ColdStoreError, match="the disk is gone") as caught:
        store.lookup(keys, out=out)
    assert caught.value.__notes__ == ["variable 'b'"]
    assert [bool(np.isnan(out[table]).any()) for table in tables] == [False, True, False]
    monkeypatch.undo()
    assert not np.isnan(store.lookup({"b": np.arange(2000, 2010)})["b"]).any()


def test_closed_and_read_only_stores_say_so(store, tables):
    store.flush()
    with kvemb.open(store.path, follow=True) as reader:
        np.testing.assert_array_equal(reader.lookup({"a": [3]})["a"], [[6, 7]])
        with pytest.raises(ReadOnly):
            reader.apply_gradients({"a": ([3], [[1.0, 1]])})
    with pytest.raises(Closed):
        reader.lookup({"a": [3]})


def test_a_lookup_sees_one_point_of_all_variables(store, tables):
    """A follower that moves on between the reads of two variables reads both again."""
    store.flush()
    with kvemb.open(store.path, follow=True) as reader:
        first, second = (reader.variables[name] for name in ("a", "b"))
        for table in tables[:2]:
            table.upsert([1], np.full((1, table.dim), -1, np.float32))
        store.flush()
        operations, moved = inside(second).operations, []
        usual = operations.begin_lookup_at_once

        def late(*arguments, **options):
            if not moved:
                moved.append(reader.refresh())
            return usual(*arguments, **options)

        operations.begin_lookup_at_once = late
        rows = reader.lookup({first: [1], second: [1]})
        assert moved == [True]
        assert rows[first].tolist() == [[-1, -1]]
        assert rows[second].tolist() == [[-1, -1, -1]]


@OVER_THREADS
def test_two_threads_that_train_the_same_variables_lose_nothing(open_store, tmp_path):
    store = open_store(tmp_path / "two")
    tables = [store.get_variable(name, dim=2, optimizer=kvemb.optimizers.SGD(1.0)) for name in NAMES]
    keys = np.arange(50)

    def train():
        for _ in range(20):
            store.apply_gradients({table: (keys, np.full((50, 2), -1, np.float32)) for table in tables})

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rows in store.lookup(dict.fromkeys(NAMES, keys)).values():
        np.testing.assert_array_equal(rows, np.full((50, 2), 40))


@pytest.mark.parametrize("durability", ["write"])
def test_what_was_applied_is_in_the_log(open_store, tmp_path, durability):
    store = open_store(tmp_path / "logged", durability=durability)
    tables = [store.get_variable(name, dim=2, optimizer=kvemb.optimizers.SGD(1.0)) for name in NAMES]
    store.apply_gradients({table: ([5], [[-1.0, -2]]) for table in tables})
    store.close(flush=False)
    again = open_store(tmp_path / "logged", durability=durability)
    assert all(rows.tolist() == [[1, 2]] for rows in again.lookup({name: [5] for name in NAMES}).values())


def test_arrays_that_are_given_are_filled_and_returned(store, tables):
    keys = draw(1)
    wanted = dict(zip(tables, keys, strict=True))
    expected = store.lookup(wanted, touch=False)
    out = {table: np.full((5, 8, table.dim), np.nan, np.float32) for table in tables[:2]}
    found = store.lookup(wanted, touch=False, out=out)
    assert list(found) == tables
    for table in tables:
        np.testing.assert_array_equal(found[table], expected[table])
        assert table not in out or found[table] is out[table]


def test_a_variable_that_is_in_use_is_waited_for(store, tables):
    """The others are entered at once; this one when the thread that works on it has ended."""
    storage, counts, found = inside(tables[1]).storage, inside(tables[2]).storage.counts, []
    with storage.access.held():
        waiting = threading.Thread(target=lambda: found.append(store.lookup({table: [7] for table in tables})))
        waiting.start()
        while counts.hits + counts.misses == 0:  # not through stats, which enters the variable
            pass
        assert not found
    waiting.join()
    assert [row.tolist()[0][0] for row in found[0].values()] == [14, 21, 28]
    assert [table.stats.hits + table.stats.misses for table in tables] == [1, 1, 1]


@pytest.mark.limits(hot_parallel_keys=1, step_parallel_keys=41)
def test_a_step_with_few_keys_of_each_variable_takes_one_thread(store, tables, monkeypatch):
    """And a lookup of the same keys takes several."""
    spread = Mock(wraps=calls.run_each)
    monkeypatch.setattr(calls, "run_each", spread)
    monkeypatch.setattr(calls, "cores", lambda: 2)
    for count, threads in ((40, 1), (41, 2)):
        keys = np.arange(count)
        rows = store.lookup(dict.fromkeys(tables, keys))
        assert spread.call_args_list[0].args[1] == 2
        spread.reset_mock()
        store.apply_gradients({table: (keys, rows[table]) for table in tables})
        assert spread.call_args.args[1] == threads
        spread.reset_mock()
