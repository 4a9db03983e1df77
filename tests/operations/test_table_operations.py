"""Calls with arrays on the GPU where rows are in several tiers, go through the host, or are pooled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_on_device import ArrayOnDevice, DlpackOnly, there
from counting_device import CountingDevice
from cuda_devices import device_of
from cuda_on_cpu import CudaOnCpuTable, cpu_device
from quick import quick

import kvemb
from kvemb import registry
from kvemb.backends.cuda.queue import Queue
from kvemb.backends.cuda.staging import SMALL_UPLOADS
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.many_tables import calls
from kvemb.many_tables.table_parts import CountedKeys
from kvemb.memory.budget import Budget
from kvemb.optimizers import Adagrad
from kvemb.threads.pool import Here
from tests.histories import small_spill

KEYS, DIM = 900, 5
DEVICE_OF = {"plain": "cpu", "rows": "gpu:0"}


@pytest.fixture
def _gpu_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device_of("cpu")
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:SmallCudaTable")


@pytest.fixture
def opened(tmp_path: Path, _gpu_on_cpu: None) -> Iterator[Any]:
    """kvemb.open of an empty store, whose tables on a GPU have 128 cells."""
    stores = []

    def opener(**how: Any) -> kvemb.Store:
        stores.append(kvemb.open(tmp_path / "store", **{"memory_budget": "6MiB", **how}))
        return stores[-1]

    yield opener
    for store in stores:
        with store:
            store.check()


def still(store: kvemb.Store) -> kvemb.Store:
    """A store whose rows are moved on the caller's thread, so that a test can tell where they are."""
    engine = inside(store)
    engine.readers.shutdown()
    engine.readers = Here()
    return store


def made(store: kvemb.Store, name: str, **how: Any) -> kvemb.Variable:
    how = {"dim": DIM, "initializer": kvemb.RandomNormal(0.0, 1.0, seed=3), "optimizer": Adagrad(0.1), **how}
    return store.get_variable(name, **how)


def train(plain: kvemb.Variable, var: kvemb.Variable, seed: int, steps: int = 8) -> None:
    """The same steps on both, of which the second gets arrays on the GPU."""
    chance = np.random.default_rng(seed)
    for _ in range(steps):
        keys = np.where(chance.random(60) < 0.5, chance.zipf(1.2, 60), chance.integers(0, KEYS, 60)) % KEYS
        grads = chance.normal(size=(60, DIM)).astype(np.float32)
        rows, exists = plain.lookup(keys, True)
        got, flags = var.lookup(there(keys), True)
        assert got.array.tobytes() == rows.tobytes()
        assert (flags.array == exists).all()
        plain.apply_gradients(keys, grads)
        var.apply_gradients(there(keys), there(grads))
        plain.upsert(keys[:9], grads[:9])
        var.upsert(there(keys[:9]), there(grads[:9]))
        plain.accum(keys, rows, grads, exists)
        var.accum(there(keys), there(rows), there(grads), there(exists))


def assert_equal(one: kvemb.Variable, other: kvemb.Variable) -> None:
    mine, theirs = (each.export(with_slots=True, with_scores=True) for each in (one, other))
    for column, another in zip(mine, theirs, strict=True):
        np.testing.assert_equal(column, another)


def fill_pinned_memory(host: Budget) -> None:
    """Let the budget pay now for what the GPU's tables will take of it, so that it has a known rest."""
    device = cpu_device("gpu:0")
    device.staging.account(host.take, host.total)
    queue, memory = Queue(device), device.allocate(1 << 16)
    for nbytes in (*[device.staging.small_bytes] * SMALL_UPLOADS, 1 << 16):
        queue.upload(memory.address, np.zeros(nbytes, np.uint8))


class Sums(kvemb.RestrictPolicy):
    """A user's policy, which the kernels do not know."""

    def score(self, old_score: Any, count: Any, now: Any) -> Any:
        return old_score + count


@pytest.mark.parametrize("policy", quick([Sums(), None]))
def test_keys_may_be_given_with_the_numbers_of_their_uses(opened: Any, policy: Any) -> None:
    """On the device, in the host tier, on disk and nowhere; a key may occur twice."""
    store = still(opened(limits=Limits(**small_spill(8))))
    plain = made(store, "plain", hot_rows=KEYS, restrict_policy=policy)
    var = made(store, "rows", devices="gpu:0", restrict_policy=policy)
    train(plain, var, 1, 20)
    keys = np.random.default_rng(5).permutation(np.r_[np.arange(0, KEYS + 40, 3), np.arange(60)])
    counts = np.random.default_rng(6).integers(1, 9, len(keys))
    before = plain.stats, var.stats
    rows = store.lookup({plain: np.repeat(keys, counts)})[plain][np.cumsum(counts) - counts]
    got: Any = store.lookup({var: CountedKeys(there(keys), there(counts))})  # type: ignore[dict-item]
    assert got[var].array.tobytes() == rows.tobytes()
    assert_equal(plain, var)
    for stats in (plain.stats - before[0], var.stats - before[1]):
        assert stats.hits + stats.misses + stats.absent == counts.sum()
    found: Any = store.lookup({plain: CountedKeys(keys, counts)})  # type: ignore[dict-item]
    assert found[plain].tobytes() == rows.tobytes()
    var.lookup(there(np.repeat(keys, counts)))
    assert_equal(plain, var)


def test_rows_in_three_tiers(opened: Any) -> None:
    store = still(opened(limits=Limits(**small_spill(8))))
    host = inside(store).budgets.host
    fill_pinned_memory(host)
    plain = made(store, "plain", hot_rows=KEYS)
    store.get_variable("other", dim=8, hot_rows=(host.free - 30_000) // (8 * 4 + 26))
    var = made(store, "rows", devices="gpu:0")
    train(plain, var, 1, 20)
    device, below = inside(var).hot_tables.tables
    assert device.size > 100
    assert below.size > 100
    assert var.size() > device.size + below.size
    assert not np.isin(device.keys(), below.keys()).any()
    tiers = var.stats.tiers
    assert (tiers["gpu:0"].rows, tiers["host"].rows) == (device.size, below.size)
    assert (tiers["gpu:0"].cells, tiers["host"].cells) == (device.capacity_rows, below.capacity_rows)
    assert sum(tier.rows for tier in tiers.values()) + var.stats.rows_waiting >= var.size()
    assert f"{device.size} hot on gpu:0 in " in repr(var)
    assert f", {below.size} in the host's memory in " in repr(var)
    assert_equal(plain, var)


@pytest.mark.parametrize("how", [{"constraint": lambda rows: np.clip(rows, -1, 1)}, {}], ids=["constraint", "log"])
def test_what_needs_rows_on_the_host_brings_them(opened: Any, how: Any) -> None:
    store = opened(durability="checkpoint" if how else "write")
    plain, var = made(store, "plain", **how), made(store, "rows", devices="gpu:0", hot_rows=128, **how)
    train(plain, var, 2)
    assert_equal(plain, var)


@pytest.mark.slow
def test_a_checkpoint_that_is_written_meanwhile_has_one_instants_rows(opened: Any, tmp_path: Path) -> None:
    store, pending = opened(limits=Limits(**small_spill(8))), []
    plain, var = made(store, "plain"), made(store, "rows", devices="gpu:0", hot_rows=128)
    for turn in range(4):
        train(plain, var, turn, 3)
        pending.append(store.checkpoint(tmp_path / f"{turn}", block=False))
    train(plain, var, 9, 3)
    for taken in pending:
        with kvemb.open(taken.result(), read_only=True) as checkpoint:
            assert_equal(*(checkpoint.variables[name] for name in ("plain", "rows")))


def test_one_call_on_many_variables_takes_arrays_from_both_memories(opened: Any) -> None:
    store = opened()
    plain, var = made(store, "plain"), made(store, "rows", devices="gpu:0", hot_rows=128)
    keys, grads = np.arange(300) % 200, np.random.default_rng(0).normal(size=(300, DIM)).astype(np.float32)
    store.apply_gradients({plain: (keys, grads), var: (there(keys), there(grads))})
    store.prefetch({plain: keys, "rows": there(keys)})
    out = there(np.zeros((300, DIM), np.float32))
    found = store.lookup({plain: keys, "rows": there(keys)}, out={"rows": out})
    assert found["rows"] is out
    assert out.array.tobytes() == found[plain].tobytes()
    assert_equal(plain, var)
    for after in (False, True):
        var.prefetch(there(keys), after_lookup=after)
        var.lookup(there(keys[:9]))
        kvemb.embedding_lookup(var, there(keys[:9]), max_norm=1.0)
    assert not inside(var).storage.ahead._waiting
    var.remove(there(keys[:9]))
    assert var.size() == 191


def test_arrays_on_the_gpu_are_used_on_the_callers_thread(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA's per-thread stream has one number in all threads."""
    store = opened(limits=Limits(hot_parallel_keys=1, step_parallel_keys=1))
    plain, var = made(store, "plain"), made(store, "rows", devices="gpu:0", hot_rows=128)
    run_each, spread = calls.run_each, []

    def watched(work: Any, threads: int) -> Any:
        spread.append(threads)
        return run_each(work, threads)

    monkeypatch.setattr(calls, "run_each", watched)
    monkeypatch.setattr(calls, "cores", lambda: 2)
    keys, grads = np.arange(100), np.ones((100, DIM), np.float32)
    store.apply_gradients({plain: (keys, grads), var: (there(keys), there(grads))})
    assert spread == [1]
    store.apply_gradients({plain: (keys, grads), var: (keys, grads)})
    assert spread == [1, 2]
    assert_equal(plain, var)


@pytest.mark.independent
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hot_rows", [128, None], ids=["two tiers", "three tiers"])
def test_bags_are_pooled_and_trained_on_the_gpu(
    opened: Any, combiner: Any, weighted: bool, hot_rows: int | None
) -> None:
    store, chance = opened(), np.random.default_rng(4)
    plain, var = made(store, "plain"), made(store, "rows", devices="gpu:0", hot_rows=hot_rows)
    for count in (60, 200, 60):
        ids, offsets = chance.integers(0, count, 80), np.sort(np.concatenate([[0, 0], chance.integers(0, 80, 10)]))
        weights = chance.normal(size=80).astype(np.float32) if weighted else None
        pooled = kvemb.embedding_lookup_sparse(plain, ids, offsets, weights, combiner)
        on_gpu = None if weights is None else there(weights)
        got = kvemb.embedding_lookup_sparse(var, there(ids), there(offsets), on_gpu, combiner)
        assert isinstance(got.values, ArrayOnDevice)
        assert got.values.array.tobytes() == pooled.values.tobytes()
        grads = chance.normal(size=pooled.shape).astype(np.float32)
        pooled.apply_gradients(grads)
        got.apply_gradients(there(grads))
        keys, rows = got.row_gradients(there(grads))
        assert keys.array.tolist() == pooled.row_gradients(grads)[0].tolist()
        assert rows.array.tobytes() == pooled.row_gradients(grads)[1].tobytes()
    assert_equal(plain, var)


@pytest.mark.parametrize("policy", [None, kvemb.FrequencyRestrictPolicy], ids=["last use", "uses"])
def test_bags_without_a_row_in_the_hosts_memory_stay_on_the_gpu(
    opened: Any, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    device = CountingDevice()
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: device))
    store, keys = still(opened()), np.arange(400)
    plain, var = (made(store, name, devices=where, restrict_policy=policy) for name, where in DEVICE_OF.items())
    values = np.random.default_rng(5).normal(size=(400, DIM)).astype(np.float32)
    for each in (plain, var):
        each.upsert(keys, values)
        each.lookup(keys)
    inside(var).storage.ahead.move()  # otherwise another thread may be doing it while keys() looks
    device_rows, below = (table.keys() for table in inside(var).hot_tables.tables)
    ids = np.concatenate([device_rows[:60], below[:1], [1000, 1000], below[1:3], device_rows[:2]])
    offsets = [*range(59), 62, 63, 66]  # of 62 bags, those from 58 to 60 have a row below, or of nobody
    device.start()
    got = kvemb.embedding_lookup_sparse(var, there(ids), there(offsets))
    assert 3 * 4 * DIM in device.downloads
    assert max(device.downloads) < 58 * 4 * DIM
    assert got.values.array.tobytes() == kvemb.embedding_lookup_sparse(plain, ids, offsets).values.tobytes()
    assert_equal(plain, var)
    for each, array in ((plain, np.asarray), (var, there)):
        for _ in range(3):
            kvemb.embedding_lookup_sparse(each, array(below[:1]), array([0]))
            each.lookup(device_rows[:1])
    assert np.isin(below[0], inside(var).hot_tables.tables[0].keys()), "it rose"
    assert_equal(plain, var)


def test_rows_of_ids_are_looked_up_trained_and_written_back_on_the_gpu(opened: Any) -> None:
    store = opened()
    plain, var = made(store, "plain"), made(store, "rows", devices="gpu:0", hot_rows=128)
    ids, grads = np.arange(30).reshape(5, 6) % 11, np.ones((5, 6, DIM), np.float32)
    for _ in range(2):
        kvemb.embedding_lookup(plain, ids).apply_gradients(grads)
        kvemb.embedding_lookup(var, there(ids)).apply_gradients(there(grads))
    assert_equal(plain, var)
    clipped = kvemb.embedding_lookup(var, there(ids), max_norm=0.5)
    assert clipped.values.array.tobytes() == kvemb.embedding_lookup(plain, ids, max_norm=0.5).values.tobytes()
    with pytest.raises(ValueError, match="max_norm clipped have no gradients on a GPU"):
        clipped.apply_gradients(there(grads))
    safe = kvemb.safe_embedding_lookup_sparse(var, there(ids[0]), np.array([0, 3, 3]), default_id=2)
    here = kvemb.safe_embedding_lookup_sparse(plain, ids[0], np.array([0, 3, 3]), default_id=2)
    assert safe.values.array.tobytes() == here.values.tobytes()
    kvemb.embedding_lookup(var, there(ids)).update(there(grads))
    assert (var.lookup(ids) == 1).all()
    with pytest.raises(TypeError, match="embedding_lookup_unique takes ids in the host's memory"):
        kvemb.embedding_lookup_unique(var, there(ids))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda here, var: here.lookup(there([1])), TypeError, "are in the host's memory: pass arrays in the host's"),
        (lambda here, var: var.lookup(ArrayOnDevice(np.array([1]), gpu=1)), TypeError, "on 'gpu:1', and the hot rows"),
        (lambda here, var: var.lookup(np.array([1]), out=there(np.ones((1, DIM)))), TypeError, "must be a NumPy"),
        (lambda here, var: var.upsert(there([1]), np.ones((1, DIM))), TypeError, "values must be an array on 'gpu:0'"),
        (lambda here, var: var.upsert([1], there(np.ones((1, DIM)))), TypeError, r"on a GPU; pass values.get\(\)"),
        (lambda here, var: var.apply_gradients(there([1]), None), TypeError, "as keys are, got None"),
        (lambda here, var: var.apply_gradients(there([1]), there(np.ones((2, DIM)), np.float32)), ValueError, "shape"),
        (lambda here, var: var.lookup(there([1.0])), TypeError, "keys must be int64, got float64"),
        (lambda here, var: var.lookup_slot("accumulator", there([1])), TypeError, r"on a GPU; pass keys.get\(\)"),
    ],
)
def test_what_does_not_fit_is_refused(opened: Any, call: Any, error: Any, said: str) -> None:
    store = opened()
    here, var = made(store, "here"), made(store, "there", devices="gpu:0", hot_rows=128)
    with pytest.raises(error, match=said):
        call(here, var)
    assert here.size() == var.size() == 0


def test_a_variable_on_several_devices_takes_arrays_of_the_host(opened: Any) -> None:
    var = made(opened(), "rows", devices=["gpu:0", "gpu:1"], hot_rows=256)
    with pytest.raises(TypeError, match="hot rows of variable 'rows' are on gpu:0, gpu:1: pass arrays in the host's"):
        var.lookup(there([1]))


@pytest.mark.parametrize(("arrays", "waits"), [(there, 1), (DlpackOnly, 2)], ids=["as CuPy's", "with DLPack alone"])
def test_arrays_with_dlpack_alone_are_not_in_use_when_a_call_ends(
    opened: Any, monkeypatch: pytest.MonkeyPatch, arrays: Any, waits: int
) -> None:
    device = CountingDevice()
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: device))
    var = made(opened(), "rows", devices="gpu:0", hot_rows=128)
    keys, rows, exists = np.arange(9), np.ones((9, DIM), np.float32), np.ones(9, bool)
    var.upsert(arrays(keys), arrays(rows))
    found = var.lookup(arrays(keys))
    assert type(found) is type(arrays(keys)), "answered in kind"
    assert found.array.tolist() == rows.tolist()
    for call, given in (
        (var.lookup, [keys]),
        (var.upsert, [keys, rows]),
        (var.apply_gradients, [keys, rows]),
        (var.accum, [keys, rows, rows, exists]),
    ):
        device.start()
        call(*map(arrays, given))
        assert device.waits == waits
    pooled = kvemb.embedding_lookup_sparse(var, there(keys), there([0, 4]))
    device.start()
    pooled.row_gradients(arrays(np.ones((2, DIM), np.float32)))
    assert device.waits == waits - 1
