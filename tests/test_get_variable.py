"""Making and opening variables: every argument, and what a stored or an open variable refuses."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
from kvemb import (
    FrequencyRestrictPolicy,
    MemoryCreator,
    RandomUniform,
    RestrictPolicy,
    RocksDBCreator,
    TimestampRestrictPolicy,
    Variable,
    Zeros,
    bulk,
)
from kvemb.errors import SchemaMismatch
from kvemb.optimizers import SGD, Adagrad
from kvemb.rows.schema import KEY_DTYPES, VALUE_DTYPES, dtype_of
from tests.test_variable import HOT, values_of


def test_a_variable_tells_what_it_was_given(store):
    def partitioner(keys, shard_num):
        return keys % shard_num

    policy, optimizer, initializer = TimestampRestrictPolicy(clock="steps"), Adagrad(0.5), RandomUniform(seed=3)
    variable = Variable(
        "uint64", "float64", 5, ["/CPU:0", "cpu"], partitioner, "shared", "a/b", initializer, False, False, 128,
        RocksDBCreator(bloom_bits=0), policy, True, store=store, optimizer=optimizer,
    )  # fmt: skip
    assert (variable.name, variable.dim, variable.devices) == ("a/b", 5, ("cpu", "cpu"))
    assert (variable.key_dtype, variable.value_dtype) == (np.dtype("uint64"), np.dtype("float64"))
    assert variable.partitioner is partitioner
    assert variable.restrict_policy == policy
    assert variable.restrict_policy.variable is variable
    assert (variable.trainable, variable.bp_v2, variable.persistent) == (False, True, True)
    assert variable.initializer is initializer
    assert variable.optimizer is optimizer
    assert len(variable.tables) == 2
    assert sum(table.capacity_rows for table in variable.tables) >= 128
    assert variable.resource_handle == (store, "a/b")
    assert store.variables["a/b"] is variable


def test_the_default_variable_reads_zeros(store):
    variable = Variable(store=store)
    assert variable.name == "DynamicEmbedding_Variable"
    assert (variable.dim, variable.devices, variable.restrict_policy) == (1, ("cpu",), None)
    assert variable.initializer == Zeros()
    assert variable.lookup([1, 2]).tolist() == [[0.0], [0.0]]


@pytest.mark.independent
@pytest.mark.parametrize("key", KEY_DTYPES)
@pytest.mark.parametrize("value", VALUE_DTYPES)
def test_every_pair_of_dtypes_keeps_its_rows(make, key, value):
    if value == "bfloat16":
        pytest.importorskip("ml_dtypes")
    limits = np.iinfo(key)
    keys = np.unique(np.array([limits.min, limits.max, 0, 1, limits.max // 2, *range(40, 70)], key))
    dtype = dtype_of(value)
    values = (np.arange(len(keys) * 3) % 120).reshape(-1, 3).astype(dtype)
    values[0] = 0
    variable = make(key_dtype=key, value_dtype=value)
    assert (variable.key_dtype, variable.value_dtype) == (np.dtype(key), dtype)
    variable.upsert(keys[::-1], values[::-1])
    assert variable.size() == len(keys) > HOT
    got, exists = variable.lookup(keys, return_exists=True)
    assert got.dtype == dtype
    assert got.tobytes() == values.tobytes()
    assert exists.all()
    out_keys, out_values = variable.export()
    assert out_keys.dtype == np.dtype(key)
    assert out_keys.tolist() == keys.tolist()
    assert out_values.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("spec", "devices"), [(None, ("cpu",)), ("/CPU:0", ("cpu",)), (("cpu", "/cpu:0", "CPU:3"), ("cpu",) * 3)]
)
def test_devices_are_hot_tables(store, spec, devices):
    variable = store.get_variable("x", devices=spec)
    assert variable.devices == devices
    assert len(variable.tables) == len(devices)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_partitioner_divides_the_hot_tier_only(store, count):
    keys = np.arange(-50, 50)
    variable = store.get_variable("x", dim=3, devices=["cpu"] * count, hot_rows=HOT)
    variable.upsert(keys, values_of(100))
    assert [variable.size(index) for index in range(count)] == [int(np.sum(keys % count == n)) for n in range(count)]
    np.testing.assert_array_equal(variable.lookup(keys), values_of(100))
    store.flush()


def test_the_number_of_devices_may_change(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    store.get_variable("x", dim=3, devices=["cpu"] * 3, hot_rows=48).upsert(np.arange(100), values_of(100))
    store.close()
    for number in range(3):
        store = open_store(tmp_path / "store")
        one = store.get_variable(
            "x", dim=3, devices=["cpu"] * (2 - number) or None, partitioner=lambda k, n: k // 7 % n
        )
        np.testing.assert_array_equal(one.lookup(np.arange(100)), values_of(100))
        store.close()


@pytest.mark.independent
@pytest.mark.parametrize(
    ("spec", "row"),
    [(None, [0, 0, 0]), (2, [2, 2, 2]), (0.5, [0.5] * 3), ([1, 2, 3], [1, 2, 3]), (np.arange(3.0), [0, 1, 2])],
    ids=repr,
)
def test_missing_keys_read_the_initializers_row(make, spec, row):
    variable = make(initializer=spec)
    rows, exists = variable.lookup([5, -5, 5], return_exists=True)
    assert rows.tolist() == [row] * 3
    assert exists.tolist() == [False] * 3
    assert variable.size() == 0


def test_random_rows_are_the_same_on_every_device_and_for_ever(open_store, tmp_path):
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 200)
    seen = []
    for number, devices in enumerate([None, ["cpu"] * 3, ["cpu"]]):
        store = open_store(tmp_path / f"store{number % 2}")
        start = RandomUniform(-1, 1, seed=9) if number < 2 else None
        seen.append(store.get_variable("x", dim=4, devices=devices, initializer=start).lookup(keys))
        store.close()
    assert seen[0].tobytes() == seen[1].tobytes() == seen[2].tobytes()
    assert (seen[0][0] != seen[0][1]).all()


def test_init_size_is_divided_by_the_devices(store):
    one = store.get_variable("one", init_size=1000)
    assert 1000 <= one.tables[0].capacity_rows <= 3000
    two = store.get_variable("two", init_size=1000, devices=["cpu"] * 2)
    assert [500 <= table.capacity_rows <= 1500 for table in two.tables] == [True, True]


def test_hot_rows_is_the_size_of_the_hot_tier(store):
    fixed = store.get_variable("fixed", hot_rows=100)
    assert fixed.tables[0].capacity_rows == 112
    fixed.upsert(np.arange(500), values_of(500, 1))
    assert fixed.stats.rows_hot == fixed.tables[0].capacity_rows == 112


def test_the_hot_tier_grows_under_pressure(store):
    growing = store.get_variable("growing", init_size=64)
    before = growing.tables[0].capacity_rows
    growing.upsert(np.arange(5000), values_of(5000, 1))
    assert growing.tables[0].capacity_rows > before
    assert growing.stats.rows_hot == 5000
    assert growing.stats.bytes_hot == growing.tables[0].nbytes < 8 << 20


def test_cold_rows_in_memory_are_lost_at_close(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    variable = store.get_variable("x", kv_creator=MemoryCreator())
    variable.upsert([1], [[1.0]])
    assert not variable.persistent
    store.close()
    assert list(open_store(tmp_path / "store").variables) == []


def test_a_known_name_is_the_same_object(store):
    variable = store.get_variable(
        "x", dim=3, initializer=0.5, optimizer=Adagrad(), restrict_policy=FrequencyRestrictPolicy
    )
    assert store.get_variable("x", dim=3) is variable
    assert store.get_variable("x", "int64", np.float32, 3, initializer=kvemb.Constant(0.5)) is variable
    assert store.get_variable("x", dim=3, restrict_policy=FrequencyRestrictPolicy(), optimizer=Adagrad()) is variable
    assert kvemb.get_variable("x", dim=3, store=store) is variable
    with pytest.raises(ValueError, match="open already; use get_variable"):
        Variable(dim=3, name="x", store=store)


MISMATCHES = [
    *(("dim", {"dim": 4}, 3, 4), ("dim", {"dim": 1}, 3, 1), ("key_dtype", {"key_dtype": "uint64"}, "int64", "uint64")),
    ("value_dtype", {"value_dtype": "float16"}, "float32", "float16"),
    ("initializer", {"initializer": 0.25}, kvemb.Constant(0.5), kvemb.Constant(0.25)),
    ("initializer", {"initializer": RandomUniform()}, kvemb.Constant(0.5), RandomUniform()),
    ("optimizer", {"optimizer": SGD(0.5)}, Adagrad(), SGD(0.5)),
    ("restrict_policy", {"restrict_policy": TimestampRestrictPolicy}, "frequency", "timestamp"),
]


@pytest.mark.independent
@pytest.mark.parametrize(("field", "asked", "stored_value", "asked_value"), MISMATCHES, ids=lambda v: repr(v)[:40])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_mismatch_names_the_field(open_store, tmp_path, field, asked, stored_value, asked_value, reopened):
    store = open_store(tmp_path / "store")
    given = {"dim": 3, "initializer": 0.5, "optimizer": Adagrad(), "restrict_policy": FrequencyRestrictPolicy}
    store.get_variable("x", **given).upsert([1], values_of(1))
    if reopened:
        store.close()
        store = open_store(tmp_path / "store")
    with pytest.raises(SchemaMismatch, match=f"'x' is stored with {field}=") as caught:
        store.get_variable("x", **{"dim": 3, **asked})
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.variable, error.field) == ("x", field)
    assert (error.stored, error.given) == (stored_value, asked_value)
    assert store.get_variable("x", dim=3).lookup([1]).tolist() == values_of(1).tolist()


@pytest.mark.independent
@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (FrequencyRestrictPolicy(), FrequencyRestrictPolicy(half_life=100)),
        (FrequencyRestrictPolicy(half_life=7), FrequencyRestrictPolicy),
        (TimestampRestrictPolicy(), TimestampRestrictPolicy(clock="steps")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("reopened", [False, True])
def test_scores_of_one_scale_are_not_read_on_another(open_store, tmp_path, stored, asked, reopened):
    store = open_store(tmp_path / "store")
    store.get_variable("x", dim=3, restrict_policy=stored).upsert(np.arange(9), values_of(9))
    if reopened:
        store.close()
        store = open_store(tmp_path / "store")
    with pytest.raises(
        SchemaMismatch, match=r"leave restrict_policy out .* kvemb migrate STORE --variable x --policy NAME"
    ) as caught:
        store.get_variable("x", dim=3, restrict_policy=asked)
    assert (caught.value.stored, caught.value.given) == (stored, asked() if isinstance(asked, type) else asked)
    old = store.get_variable("x", dim=3, restrict_policy=stored)
    assert old is store.get_variable("x", dim=3)
    # Rows can be taken over without their scores.
    new = store.get_variable("y", dim=3, restrict_policy=asked)
    kvemb.bulk.load(new, (kvemb.bulk.Rows(rows.keys, rows.values, rows.slots) for rows in kvemb.bulk.scan(old)))
    np.testing.assert_array_equal(new.lookup(np.arange(9), touch=False), values_of(9))
    fresh = store.get_variable("z", dim=3, restrict_policy=asked)
    fresh.upsert([1], values_of(1))
    assert abs(new.restrict_policy.status([1])[0] - fresh.restrict_policy.status([1])[0]) < 60


class MyPolicy(RestrictPolicy):
    """A user's policy."""

    def score(self, old_score, count, now):
        return old_score * 0.5 + count


@pytest.mark.parametrize("hot_rows", [HOT, 1000])
def test_a_users_policy_is_kept_while_its_variable_is_open_without_it(open_store, tmp_path, hot_rows):
    keys = np.arange(100)
    store = open_store(tmp_path / "store")
    variable = store.get_variable("x", dim=3, restrict_policy=MyPolicy(), hot_rows=hot_rows)
    variable.upsert(keys, values_of(100))
    variable.lookup(keys[:50])
    scores = variable.restrict_policy.status(keys).tolist()
    assert set(scores) == {1.0, 1.5}
    first = store.checkpoint(tmp_path / "first")
    store.close()

    store = open_store(tmp_path / "store")
    variable = store.get_variable("x", hot_rows=hot_rows)
    assert store.variables["x"] is store.get_variable("x") is variable
    step = next(bulk.scan(variable)).steps.max()
    assert (variable.lookup([*keys, 3, 3])[:100] == values_of(100)).all()
    variable.upsert([500], values_of(1))
    assert next(bulk.scan(variable, first=500)).steps.tolist() == [step + 1], "lookups counted no step"
    assert variable.restrict_policy.status([*keys, 500]).tolist() == [*scores, 0.0]
    missing = r"opened without its policy .*\.MyPolicy; close the store, and open the variable with get_variable\("
    for call in (
        lambda: variable.restrict(1), lambda: variable.restrict_policy.apply_update([1]),
        lambda: bulk.restrict(variable, 1), lambda: store.get_variable("x", restrict_policy=MyPolicy()),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=missing):
            call()
    assert variable.size() == 101
    with pytest.raises(SchemaMismatch, match="restrict_policy"):
        store.get_variable("x", restrict_policy=FrequencyRestrictPolicy)
    store.flush()
    with kvemb.open(tmp_path / "store", follow=True, memory_budget="8MiB") as reader:
        seen = reader.variables["x"]
        variable.upsert([501], values_of(1))
        store.flush()
        assert reader.refresh()
        assert seen.size() == 102
    store.close()

    store = open_store(tmp_path / "store")
    variable = store.get_variable("x", restrict_policy=MyPolicy())
    assert variable.restrict_policy.status(keys).tolist() == scores
    assert variable.restrict(50) == 52
    store.close()

    with open_store(tmp_path / "source") as source:
        source.checkpoint(tmp_path / "empty")
        replica = kvemb.restore(tmp_path / "empty", tmp_path / "replica", memory_budget="8MiB")
        source.get_variable("x", dim=3, restrict_policy=MyPolicy()).upsert(keys, values_of(100))
        with replica:
            replica.apply_delta(source.checkpoint(tmp_path / "second"))
            assert replica.variables["x"].size() == 100
    with open_store(tmp_path / "replica") as replica:
        assert isinstance(replica.get_variable("x", restrict_policy=MyPolicy()).restrict_policy, MyPolicy)
    assert first.variables["x"].policy["kind"] == "custom"


def test_none_is_the_default_of_a_flag_and_text_is_no_flag(store, tmp_path):
    """TFRA's get_variable of some versions has trainable=None, and layers pass None on."""
    table = store.get_variable("table", dim=1, trainable=None, checkpoint=None, bp_v2=None)
    assert (table.trainable, table.bp_v2) == (True, False)
    store.checkpoint(tmp_path / "saved")
    assert list(kvemb.Checkpoint(tmp_path / "saved").variables) == ["table"]
    kept = store.get_variable("kept", dim=1, trainable=False)
    assert store.get_variable("kept", trainable=None) is kept
    for name in ("trainable", "checkpoint", "bp_v2"):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got str 'False'"):
            store.get_variable("other", dim=1, **{name: "False"})
    with pytest.raises(TypeError, match="return_exists must be True or False, got str 'name_of_an_operation'"):
        table.lookup([1], "name_of_an_operation")
    with pytest.raises(TypeError, match="touch must be True or False, got int 1"):
        table.lookup([1], touch=1)
    assert sorted(store.variables) == ["kept", "table"]


def test_a_regularizer_that_raises_leaves_no_variable(store, open_store):
    def fail(variable):
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        store.get_variable("table", dim=1, regularizer=fail)
    assert "table" not in store.variables
    assert store.get_collection(kvemb.GraphKeys.GLOBAL_VARIABLES) == []
    store.get_variable("table", dim=1).upsert([1], [[2.0]])
    store.close()
    again = open_store(store.path)
    with pytest.raises(RuntimeError, match="no loss"):
        again.get_variable("table", regularizer=fail)
    assert again.get_variable("table").lookup([1]).tolist() == [[2.0]]


def test_functions_of_other_frameworks_are_refused_when_the_variable_is_made(store):
    class L2:
        __module__ = "keras.src.regularizers.regularizers"

        def __call__(self, weight):
            raise AssertionError

    def fixed_size(shape, dtype, axis=0):
        return [1] * shape.ndims

    with pytest.raises(TypeError, match=r"regularizer must be fn\(variable\), got keras.*L2.*weight_decay"):
        store.get_variable("table", dim=1, regularizer=L2())
    with pytest.raises(TypeError, match=r"partitioner must be fn\(keys, shard_num\).*fixed_size.*has no attribute"):
        store.get_variable("table", dim=1, partitioner=fixed_size)
    with pytest.raises(TypeError, match="custom_getter must be callable, got 3"):
        store.get_variable("table", dim=1, custom_getter=3)
    assert list(store.variables) == []
