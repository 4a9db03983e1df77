"""Every number that a caller can pass to any public function: invalid values are refused in one line.

The functions are found by their signatures, so a new one must be added here: with a call, or with the reason why there
is none.
"""

from __future__ import annotations

import inspect
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb import bulk, initializers, limits, optimizers
from kvemb.checks.brief import brief
from kvemb.errors import KvembError

NUMERIC = re.compile(r"\b(int|float|Number|ArrayLike)\b")
KEYS = np.arange(100)
# Values that no parameter accepts, except that some accept the first, NaN.
NEVER = [float("nan"), "x", 10**400, -(10**400), int("9" * 3000) ** 2, b"1", object(), [[1], [1, 2]], np.str_("7"), {}]
VALUES = [
    *(True, None, 1.5, float("inf"), -1, 0, 1, 2**31, 2**40, 2**62, 2**63, 2**64, 2**70, -(2**63), 1e300, 5e-324, []),
    *(np.int64(3), np.int8(-1), np.uint64(2**63), np.float32(0.5), np.float64("nan"), np.bool_(True), np.array(3)),
]
MAX_SECONDS, MAX_CHARACTERS = 60, 600


def numeric(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of the parameters that can be numbers."""
    for name, parameter in inspect.signature(function).parameters.items():
        if NUMERIC.search(str(parameter.annotation)):
            yield name


def parameters() -> Iterator[str]:
    """Yield Function.parameter or Class.method.parameter for every number of the public interface."""
    found = {name: getattr(kvemb, name) for name in kvemb.__all__}
    found |= {f"bulk.{name}": getattr(bulk, name) for name in bulk.__all__}
    for module in (initializers, optimizers, limits):
        own = {name: each for name, each in vars(module).items() if not name.startswith("_")}
        found |= {
            name: each for name, each in own.items() if getattr(each, "__module__", "").startswith(module.__name__)
        }
    for place, each in found.items():
        if inspect.isclass(each):
            yield from (f"{each.__name__}.{name}" for name in numeric(each.__init__))
            for method, function in inspect.getmembers(each, callable):
                if not method.startswith("_") and getattr(function, "__module__", "").startswith("kvemb"):
                    owner = next(kind for kind in each.__mro__ if method in vars(kind))
                    yield from (f"{owner.__name__}.{method}.{name}" for name in numeric(function))
        elif callable(each):
            yield from (f"{place}.{name}" for name in numeric(each))


def variable(place: Any, **given: Any) -> None:
    name = f"new {next(place.counter)}"
    place.store.get_variable(name, **{"dim": 2, "hot_rows": 16, "kv_creator": kvemb.MemoryCreator(), **given})


def admitting(place: Any, admission: kvemb.Admission) -> None:
    variable(place, optimizer=optimizers.SGD(), admission=admission)


def scoped(place: Any, make: str, **given: Any) -> None:
    """Make a variable in a scope of these defaults: given to variable_scope, or those of a VariableScope it enters."""
    name = f"scope {next(place.counter)}"
    scope = (name, given) if make == "variable_scope" else (kvemb.VariableScope(name, **given), {})
    with kvemb.variable_scope(scope[0], **scope[1]):
        variable(place)


def limited(place: Any, **given: Any) -> None:
    """Work with a store of these limits."""
    path = place.path / f"limited {next(place.counter)}"
    with kvemb.open(path, memory_budget="8MiB", limits=limits.Limits(**given)) as store:
        table = store.get_variable("table", dim=2)
        table.upsert(KEYS, np.ones((100, 2), np.float32))
        store.flush()
        assert len(table.export()[0]) == 100


def opened(place: Any, open_: Callable[..., kvemb.Store], *given: Any, **budget: Any) -> None:
    open_(*given, place.path / f"opened {next(place.counter)}", **budget).close()


def resumed(place: Any, **budget: Any) -> None:
    place.series.resume(place.path / f"resumed {next(place.counter)}", **budget)[0].close()


def served(place: Any, **given: Any) -> None:
    kvemb.ServedModel(place.series.root, lambda store, _: store.variables["table"], **given).close()


def drawn(make: Callable[..., Any], **given: Any) -> Callable[[Any], None]:
    """A variable whose missing keys read as an initializer's rows."""
    return lambda place: variable(place, initializer=make(**given))


def looked_up(place: Any) -> kvemb.Embeddings:
    return kvemb.embedding_lookup(place.table, [1], touch=False)


ONE = np.ones((1, 2), np.float32)
BAGS = {"offsets": [0]}
# What an argument of get_variable needs beside it.
BESIDE: dict[str, Any] = {"init_size": {"hot_rows": None}, "name_bytes": {"key_dtype": "string"}}
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "open.memory_budget": lambda p, v: opened(p, kvemb.open, memory_budget=v),
    "open.device_memory": lambda p, v: opened(p, kvemb.open, device_memory=v),
    "restore.device_memory": lambda p, v: opened(p, kvemb.restore, p.checkpoint, device_memory=v),
    "temporary.memory_budget": lambda p, v: kvemb.temporary(v).close(),
    "restore.memory_budget": lambda p, v: opened(p, kvemb.restore, p.checkpoint, memory_budget=v),
    "open.keep_marks": lambda p, v: opened(p, kvemb.open, keep_marks=v, memory_budget="8MiB"),
    "open.flush_every": lambda p, v: opened(p, kvemb.open, flush_every=v, memory_budget="8MiB"),
    "restore.keep_marks": lambda p, v: opened(p, kvemb.restore, p.checkpoint, keep_marks=v, memory_budget="8MiB"),
    "restore.flush_every": lambda p, v: opened(p, kvemb.restore, p.checkpoint, flush_every=v, memory_budget="8MiB"),
    **{
        f"{where}.{name}": lambda p, v, name=name: variable(p, **{name: v, **BESIDE.get(name, {})})
        for where in ("Store.get_variable", "get_variable", "Variable")
        for name in ("dim", "init_size", "hot_rows", "max_rows", "ttl", "initializer", "name_bytes")
    },
    "Variable.lookup.keys": lambda p, v: p.table.lookup(v),
    "Variable.prefetch.keys": lambda p, v: p.table.prefetch(v),
    "Variable.remove.keys": lambda p, v: p.table.remove(v),
    "Variable.upsert.keys": lambda p, v: p.table.upsert(v, ONE),
    "Variable.upsert.values": lambda p, v: p.table.upsert([1], v),
    "Variable.apply_gradients.keys": lambda p, v: p.table.apply_gradients(v, ONE),
    "Variable.apply_gradients.grads": lambda p, v: p.table.apply_gradients([1], v),
    "Variable.accum.keys": lambda p, v: p.table.accum(v, ONE, ONE, [True]),
    "Variable.accum.old_values": lambda p, v: p.table.accum([1], v, ONE, [True]),
    "Variable.accum.new_values": lambda p, v: p.table.accum([1], ONE, v, [True]),
    "Variable.accum.exists": lambda p, v: p.table.accum([1], ONE, ONE, v),
    "Variable.lookup_slot.keys": lambda p, v: p.table.lookup_slot("accumulator", v),
    "Variable.restrict.num_reserved": lambda p, v: p.table.restrict(v),
    "Variable.size.index": lambda p, v: p.table.size(v),
    "Variable.export_batches.n": lambda p, v: list(p.table.export_batches(v)),
    "RestrictPolicy.apply_restriction.num_reserved": lambda p, v: p.table.restrict_policy.apply_restriction(v),
    "RestrictPolicy.apply_restriction.trigger": lambda p, v: p.table.restrict_policy.apply_restriction(1, v),
    "RestrictPolicy.apply_update.keys": lambda p, v: p.table.restrict_policy.apply_update(v),
    "RestrictPolicy.status.keys": lambda p, v: p.table.restrict_policy.status(v),
    "FrequencyRestrictPolicy.half_life": lambda p, v: variable(p, restrict_policy=kvemb.FrequencyRestrictPolicy(v)),
    "FrequencyRestrictPolicy.origin": lambda p, v: variable(
        p, restrict_policy=kvemb.FrequencyRestrictPolicy(9, origin=v)
    ),
    "TimeToLiveRestrictPolicy.ttl": lambda p, v: variable(p, restrict_policy=kvemb.TimeToLiveRestrictPolicy(ttl=v)),
    "_Epochs.set_epoch.epoch": lambda p, v: p.epochs.restrict_policy.set_epoch(v),
    "Admission.sightings": lambda p, v: admitting(p, kvemb.Admission(v)),
    "Admission.memory_bytes": lambda p, v: admitting(p, kvemb.Admission(2, v)),
    "ManyTables.lookup.keys": lambda p, v: p.store.lookup({"table": v}),
    "ManyTables.prefetch.keys": lambda p, v: p.store.prefetch({"table": v}),
    "ManyTables.apply_gradients.grads": lambda p, v: p.store.apply_gradients({"table": ([1], v)}),
    **{
        f"{make}.{name}": lambda p, v, make=make, name=name: scoped(p, make, **{name: v})
        for make in ("variable_scope", "VariableScope")
        for name in ("initializer", "constraint")
    },
    **{
        f"{look.__name__}.{name}": lambda p, v, look=look, bags=bags, name=name: look(
            p.table, **{"ids": [1, 2], **bags, name: v}
        )
        for look, bags, names in (
            (kvemb.embedding_lookup, {}, ("ids", "max_norm")),
            (kvemb.embedding_lookup_unique, {}, ("ids", "max_norm")),
            (kvemb.embedding_lookup_sparse, BAGS, ("ids", "offsets", "weights", "max_norm")),
            (kvemb.safe_embedding_lookup_sparse, BAGS, ("ids", "offsets", "weights", "max_norm", "default_id")),
        )
        for name in names
    },
    "Embeddings.row_gradients.grads": lambda p, v: looked_up(p).row_gradients(v),
    "Embeddings.apply_gradients.grads": lambda p, v: looked_up(p).apply_gradients(v),
    "Embeddings.update.values": lambda p, v: looked_up(p).update(v),
    **{
        f"RocksDBCreator.{name}": lambda p, v, name=name: variable(p, kv_creator=kvemb.RocksDBCreator(**{name: v}))
        for name in ("block_bytes", "bloom_bits", "write_buffer_bytes", "background_jobs")
    },
    **{
        f"{make.__name__}.{name}": lambda p, v, make=make, name=name: drawn(make, **{name: v})(p)
        for make, names in (
            (kvemb.Constant, ("value",)),
            (initializers.Row, ("values",)),
            (kvemb.GlorotUniform, ("seed",)),
            (kvemb.RandomNormal, ("mean", "stddev", "seed")),
            (kvemb.RandomUniform, ("minval", "maxval", "seed")),
            (kvemb.TruncatedNormal, ("mean", "stddev", "seed")),
        )
        for name in names
    },
    "Fixed.check.dim": lambda p, v: kvemb.Ones().check(v, "float32"),
    "Random.check.dim": lambda p, v: kvemb.GlorotUniform().check(v, "float32"),
    "as_initializer.dim": lambda p, v: initializers.as_initializer(1, v, "float32"),
    **{
        f"{make.__name__}.{field.name}": lambda p, v, make=make, name=field.name: variable(
            p, optimizer=make(**{name: v})
        )
        for make in optimizers.KINDS.values()
        for field in fields(make)
        if isinstance(field.default, float) or field.default is None
    },
    **{
        f"Limits.{name}": lambda p, v, name=name: limited(p, **{name: v})
        for name in (field.name for field in fields(limits.Limits))
    },
    "Checkpoint.changes.batch_rows": lambda p, v: list(p.checkpoint.changes(p.series.path(1), batch_rows=v)),
    "CheckpointManager.keep": lambda p, v: kvemb.CheckpointManager(p.path / "series", keep=v)._drop_old(p.store.id),
    "CheckpointManager.resume.number": lambda p, v: resumed(p, number=v),
    "NumberedCheckpoints.pin.number": lambda p, v: p.series.pin(v),
    "NumberedCheckpoints.unpin.number": lambda p, v: p.series.unpin(v),
    "ServedModel.memory_budget": lambda p, v: served(p, memory_budget=v),
    "hash_strings.seed": lambda p, v: kvemb.hash_strings(["a"], seed=v),
    "hash_strings.missing": lambda p, v: kvemb.hash_strings(["a", None], missing=v),
    "string_keys.name_bytes": lambda p, v: kvemb.string_keys(["a"], name_bytes=v),
    "CheckpointManager.resume.keep_marks": lambda p, v: resumed(p, keep_marks=v),
    "CheckpointManager.resume.memory_budget": lambda p, v: resumed(p, memory_budget=v),
    "CheckpointManager.resume.device_memory": lambda p, v: resumed(p, device_memory=v),
    "CheckpointManager.every": lambda p, v: kvemb.CheckpointManager(p.path / "series", every=v),
    "NumberedCheckpoints.path.number": lambda p, v: p.series.path(v),
    "NumberedCheckpoints.push.number": lambda p, v: p.series.push(p.path / "there", number=v),
    "NumberedCheckpoints.push.keep": lambda p, v: p.series.push(p.path / "there", keep=v),
    "NumberedCheckpoints.push.jobs": lambda p, v: p.series.push(p.path / "there", jobs=v),
    "NumberedCheckpoints.pull.number": lambda p, v: p.series.pull(p.path / "there", number=v),
    "NumberedCheckpoints.pull.jobs": lambda p, v: p.series.pull(p.path / "there", jobs=v),
    "PendingCheckpoint.result.timeout": lambda p, v: p.pending.result(v),
    "bulk.new_slots.values": lambda p, v: bulk.new_slots(p.table, v),
    "bulk.ranges.n": lambda p, v: bulk.ranges(p.table, v),
    "bulk.read.keys": lambda p, v: bulk.read(p.table, v),
    "bulk.restrict.num_reserved": lambda p, v: bulk.restrict(p.table, v),
    "bulk.scan.n": lambda p, v: list(bulk.scan(p.table, v)),
    "bulk.scan.first": lambda p, v: list(bulk.scan(p.table, first=v)),
    "bulk.scan.last": lambda p, v: list(bulk.scan(p.table, last=v)),
}
# Made by kvemb, for a caller to read.
RESULTS = {"Mark", "Repair", "Saved", "Stats", "Transfer", "Verification", "Loaded", "StringKeys"}
# Called by kvemb, with numbers of its own (all those of optimizers are, and formulas take them); or REQUIRES what
# check() found right.
OWN = {
    *("Slot.width", "Slot.initial", "Optimizer.shapes.dim", "Optimizer.step.count"),
    *("Optimizer.clip_value", "Optimizer.clip_norm"),
    *("RestrictPolicy.now.step", "Initializer.check.dim", "Initializer.rows.dim"),
    *("Fixed.rows.dim", "Random.rows.dim"),
    "ServedModel.unknown",  # any number, row, or dict of them
    *(
        f"{kind}RestrictPolicy.score.now"
        for kind in ("", "Timestamp", "Frequency", "EpochTimestamp", "EpochFrequency", "Norm")
    ),
    *("RestrictPolicy.min_score.now", "TimeToLiveRestrictPolicy.min_score.now"),
    *(f"{kind}RestrictPolicy.continuing.step" for kind in ("", "TimeToLive", "Frequency")),
}
# Other errors: of an index that does not exist, as of a list; of memory that the machine lacks.
LOOKUPS = {"Variable.size.index": IndexError, "ServedModel.memory_budget": MemoryError}
# Bounds of ranges: any int is valid.
BOUNDS = {"bulk.scan.first", "bulk.scan.last"}
# Floats, of which NaN is one.
FLOATS = {
    *(
        f"{where}.initializer"
        for where in ("Store.get_variable", "get_variable", "Variable", "variable_scope", "VariableScope")
    ),
    "Constant.value",
}


def test_every_number_of_the_public_interface_is_tried():
    found = {name for name in parameters() if name.split(".")[0] not in RESULTS and ".formula." not in name}
    assert found - OWN == set(CALLS)
    assert found >= OWN


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A store with a variable of 100 rows, a checkpoint that was saved, a series, and where it was pushed to."""
    path = tmp_path_factory.mktemp("numbers")
    with kvemb.open(path / "store", memory_budget="64MiB") as store, kvemb.CheckpointManager(path / "series") as series:
        table = store.get_variable(
            "table", dim=2, hot_rows=16, optimizer=optimizers.Adagrad(), restrict_policy=kvemb.FrequencyRestrictPolicy
        )
        table.upsert(KEYS, np.ones((100, 2), np.float32))
        epochs = store.get_variable("epochs", dim=2, hot_rows=16, restrict_policy=kvemb.EpochFrequencyRestrictPolicy)
        kvemb.embedding_lookup(table, [1], 1.0).row_gradients(ONE)  # compile: no call below may take long
        for _ in range(3):
            pending = series.save(store, block=False)
            pending.result()
        series.push(path / "there")
        made = store.checkpoint(path / "checkpoint")
        yield SimpleNamespace(
            path=path, store=store, table=table, epochs=epochs, series=series, pending=pending, checkpoint=made,
            counter=itertools.count(),
        )  # fmt: skip
        store.check()


def state(place: Any) -> Any:
    rows = place.table.export(with_slots=True, with_scores=True)
    names = "\n".join(place.store.variables)  # one text, as there are hundreds
    return rows, names, place.store.budget.free, place.series.numbers()


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_numbers_that_cannot_be_are_refused_in_one_line(place, name):
    wrong, before = [], state(place)
    for value in (*NEVER, *VALUES):
        shown = f"{type(value).__name__} {brief(value)}"
        began = time.process_time()
        try:
            CALLS[name](place, value)
        except (TypeError, ValueError, KvembError, LOOKUPS.get(name, KvembError)) as error:
            told = str(error)
            if not told or "\n" in told or len(told) > MAX_CHARACTERS:
                wrong.append(f"{shown}: not one line: {told[:300]!r}")
            try:
                np.testing.assert_equal(state(place), before)
            except AssertionError:
                wrong.append(f"{shown}: something changed though it was refused")
        except BaseException as error:
            wrong.append(f"{shown}: {type(error).__name__}: {str(error)[:300]}")
        else:
            before = state(place)
            if any(value is each for each in NEVER[name in FLOATS :]) and not (name in BOUNDS and type(value) is int):
                wrong.append(f"{shown}: was taken")
        if (took := time.process_time() - began) > MAX_SECONDS:
            wrong.append(f"{shown}: took {took:.0f} s")
    assert wrong == []
