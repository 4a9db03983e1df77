"""Whole rows in and out, against a dict."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvemb
from kvemb import bulk
from kvemb.bulk import Loaded, Rows
from kvemb.errors import Closed, Poisoned, ReadOnly
from kvemb.limits import Limits
from kvemb.offline import sorter, table_files
from kvemb.rows.schema import KEY_DTYPES

DIM = 2
KEY, VALUE = np.zeros(1, np.int64), np.zeros((1, DIM), np.float32)
Model = dict[int, tuple[bytes, ...]]


def table_of(store: kvemb.Store, key_dtype: str = "int64", hot_rows: int | None = 64) -> kvemb.Variable:
    return store.get_variable(
        "table", key_dtype, dim=DIM, hot_rows=hot_rows, optimizer=kvemb.optimizers.Adagrad(0.5, 0.25)
    )


def rows(keys: Any, version: float, dtype: str = "int64") -> Rows:
    keys = np.asarray(keys, dtype)
    values = np.repeat(keys.astype(np.float32)[:, None] + np.float32(version), DIM, axis=1)
    return Rows(
        keys, values, {"accumulator": values * 2}, np.full(len(keys), float(version)), np.full(len(keys), int(version))
    )


def model_of(batches: Any) -> Model:
    """What rows there are, by key: all of each, as bytes."""
    found: Model = {}
    for each in batches:
        for at, key in enumerate(each.keys.tolist()):
            assert key not in found
            found[key] = (
                each.values[at].tobytes(),
                each.slots["accumulator"][at].tobytes(),
                each.scores[at].tobytes(),
                each.steps[at].tobytes(),
            )
    return found


def merged(model: Model, batches: list[Rows], conflict: str) -> Model:
    there, result = set(model), dict(model)
    for each in batches:
        for key, row in model_of_last(each).items():
            if conflict == "replace" or key not in there:
                result[key] = row
    return result


def model_of_last(each: Rows) -> Model:
    last = np.array([len(each.keys) - 1 - at for at in np.unique(each.keys[::-1], return_index=True)[1]], np.int64)
    slots = {"accumulator": each.slots["accumulator"][last]}
    return model_of([Rows(each.keys[last], each.values[last], slots, each.scores[last], each.steps[last])])


def edges(dtype: str) -> Any:
    limits = np.iinfo(dtype)
    return st.one_of(st.integers(int(limits.min), int(limits.max)), st.integers(0, 20))


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


def test_hot_rows_are_replaced_kept_and_counted(store):
    table = table_of(store)
    table.upsert(np.arange(100), np.full((100, DIM), 7, np.float32))
    assert bulk.load(table, [rows(np.arange(50, 150), 1)], on_conflict="keep") == Loaded(50, 0, 50)
    assert table.lookup([0, 99, 100])[:, 0].tolist() == [7, 7, 101]
    assert bulk.load(table, [rows(np.arange(50, 150), 2)]) == Loaded(0, 100, 0)
    assert table.lookup([0, 99, 100])[:, 0].tolist() == [7, 101, 102]
    with pytest.raises(ValueError, match="key 0 is in 'table' already"):
        bulk.load(table, [rows([500], 3), rows([0], 3)], on_conflict="error")
    assert table.size() == 150
    assert bulk.load(table, [rows([500], 3)], on_conflict="error") == Loaded(1, 0, 0)


def test_what_is_loaded_is_durable_and_in_deltas(open_store, tmp_path):
    store = open_store(tmp_path / "store", durability="write")
    table = table_of(store)
    table.upsert([1], np.ones((1, DIM), np.float32))
    before = store.checkpoint(tmp_path / "before")
    bulk.load(table, [rows([5, 6], 1)])
    table.upsert([7], np.ones((1, DIM), np.float32))
    after = store.checkpoint(tmp_path / "after")
    assert sorted(key for change in after.changes(before) for key in change.keys.tolist()) == [5, 6, 7]
    with kvemb.restore(after, tmp_path / "copy", memory_budget="4MiB") as copy:
        assert model_of(bulk.scan(copy.variables["table"])) == model_of(bulk.scan(table))


def test_a_checkpoint_during_a_load_takes_no_key_from_the_delta(store, tmp_path):
    table = table_of(store)

    def source() -> Any:
        yield rows([1, 2], 1)
        store.checkpoint(tmp_path / "during")
        yield rows([3], 1)

    bulk.load(table, source())
    after = store.checkpoint(tmp_path / "after")
    changes = after.changes(tmp_path / "during")
    assert sorted(key for change in changes for key in change.keys.tolist()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("batch", "error", "match"),
    [
        (Rows(KEY.reshape(1, 1), VALUE), ValueError, "keys must have the shape"),
        (Rows(np.zeros(1), VALUE), TypeError, "keys"),
        (Rows(KEY, np.zeros((1, 3), np.float32)), ValueError, "values"),
        (Rows(KEY, np.zeros((1, DIM))), TypeError, "float64"),
        (Rows(KEY, VALUE, {"m": VALUE}), ValueError, "slots must be"),
        (Rows(KEY, VALUE, scores=np.zeros(2)), ValueError, "scores must have"),
        (Rows(KEY, VALUE, scores=np.array([np.nan])), ValueError, "not a number"),
        (Rows(KEY, VALUE, steps=np.array([0.5])), TypeError, "steps must be"),
    ],
)
def test_a_batch_that_does_not_fit_changes_nothing(store, batch, error, match):
    table = table_of(store)
    with pytest.raises(error, match=match):
        bulk.load(table, [rows([1], 1), batch])
    assert table.size() == 0
    assert [path.name for path in store.path.glob("live/load*")] == []


def test_a_source_that_fails_changes_nothing(store):
    table = table_of(store)

    def source() -> Any:
        yield rows([1], 1)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        bulk.load(table, source())
    assert table.size() == 0


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


def test_a_disk_that_refuses_poisons_and_the_store_is_as_it_was(monkeypatch, open_store, tmp_path):
    from kvemb.backends.rocks import RocksDatabase
    from kvemb.errors import ColdStoreError

    store = open_store(tmp_path / "store")
    table = table_of(store)
    table.upsert([1], np.ones((1, DIM), np.float32))
    store.flush()

    def refuse(*args: Any) -> None:
        raise ColdStoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(RocksDatabase, "ingest", refuse)
        with pytest.raises(Poisoned):
            bulk.load(table, [rows([2], 1)])
    assert table.lookup([1])[0, 0] == 1
    store.close()
    with open_store(tmp_path / "store") as again:
        assert again.variables["table"].size() == 1


def test_rows_in_memory_alone_are_loaded_too(store):
    table = store.get_variable("table", dim=DIM, kv_creator=kvemb.MemoryCreator(), hot_rows=32)
    assert bulk.load(table, [Rows(np.arange(100), np.ones((100, DIM), np.float32))]) == Loaded(100, 0, 0)
    assert sum(map(len, bulk.scan(table))) == 100
    assert bulk.ranges(table, 4)[0][1] == 24


def test_training_goes_on_beside_a_load(store):
    """Threads write other keys meanwhile: nothing is lost on either side."""
    table = table_of(store, hot_rows=64)
    bulk.load(table, [rows([10_000], 1)])
    stop, count = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            table.upsert([-1 - count[0]], np.ones((1, DIM), np.float32))
            count[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    for start in range(0, 3000, 1000):
        bulk.load(table, [rows(np.arange(start, start + 1000), 1)])
    stop.set()
    thread.join()
    assert table.size() == 3001 + count[0]
    assert sum(map(len, bulk.scan(table))) == table.size()
    store.check()


def test_an_empty_table_that_is_written_to_meanwhile_is_told(store):
    table = table_of(store)

    def source() -> Any:
        yield rows([1, 2], 1)
        table.upsert([2], np.zeros((1, DIM), np.float32))

    with pytest.raises(ValueError, match="was written to during the load; load again"):
        bulk.load(table, source())
    assert sum(map(len, bulk.scan(table))) == table.size() == 1


def test_rows_that_ascend_and_then_do_not_are_one_load(store):
    table = table_of(store)
    batches = [rows(np.arange(0, 100), 1), rows(np.arange(100, 200), 2), rows(np.arange(50, 150), 3), rows([5], 4)]
    assert bulk.load(table, batches) == Loaded(200, 0, 0)
    assert model_of(bulk.scan(table)) == merged({}, batches, "replace")
    store.check()


@pytest.mark.parametrize("conflict", ["replace", "error"])
def test_a_load_that_is_interrupted_changes_nothing(monkeypatch, store, tmp_path, conflict):
    """Wherever it is: all rows come at once, or none."""
    table = table_of(store)
    before = store.checkpoint(tmp_path / "before")
    batches = [rows([1, 2, 3], 1), rows([2, 9], 2)]

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    for place, name in (
        (sorter.Sorter, "blocks"),
        (table_files.TableFiles, "finish"),
        (table_files.TableFiles, "drain"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                bulk.load(table, batches, on_conflict=conflict)
        assert table.size() == 0
    assert bulk.load(table, batches, on_conflict=conflict) == Loaded(4, 0, 0)
    assert model_of(bulk.scan(table)) == merged({}, batches, "replace")
    changes = store.checkpoint(tmp_path / "after").changes(before)
    assert sorted(key for change in changes for key in change.keys.tolist()) == [1, 2, 3, 9]


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


@pytest.mark.parametrize("step", [2**61 + 1, 2**62 - 1, 2**62, -1])
def test_steps_beyond_what_can_be_counted_are_refused(store, step):
    table = table_of(store)
    with pytest.raises(ValueError, match=r"steps must be from 0 to 2\*\*61"):
        bulk.load(table, [Rows(KEY, VALUE, steps=np.array([step]))])
    with pytest.raises(TypeError, match="steps must be int64"):
        bulk.load(table, [Rows(KEY, VALUE, steps=np.array([2**64 - 1], np.uint64))])


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
