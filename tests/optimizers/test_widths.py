"""Slots of any width go wherever rows go: disk, log, checkpoints, deltas, replicas, exports, and every tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashes import copy_of_open
from quick import quick

import kvemb
from kvemb import bulk
from kvemb.errors import SchemaMismatch
from kvemb.optimizers import SGD, Adagrad, Adam, AMSGrad, Optimizer, PartialRowWiseAdam, RowWiseAdagrad
from kvemb.tools import table_stats
from kvemb.tools.cli import run
from kvemb.tools.diff import diff
from kvemb.tools.failures import BadInput
from kvemb.tools.importing import import_table
from kvemb.tools.migrate import migrate, plan

pytest.importorskip("pyarrow")
BUDGET = "4MiB"
DIM = 5
WIDTHS: dict[str, tuple[Optimizer, dict[str, int]]] = {
    "partial_row_wise_adam": (PartialRowWiseAdam(0.5, bias_correction="global"), {"m": DIM, "v": 1}),
    "row_wise_adagrad": (RowWiseAdagrad(0.5, 0.25), {"accumulator": 1}),
    "adam": (Adam(0.5), {"m": DIM, "v": DIM, "steps": 1}),
    "amsgrad": (AMSGrad(0.5), {"m": DIM, "v": DIM, "v_max": DIM, "steps": 1}),
}
KEYS = np.arange(-200, 400)


def train(table: kvemb.Variable, seed: int, keys: Any = KEYS) -> None:
    grads = np.random.default_rng(seed).normal(size=(len(keys), DIM)).astype(np.float32)
    table.apply_gradients(keys, grads)


def whole(store: kvemb.Store | Path) -> dict[str, Any]:
    """All of the table's rows."""
    if isinstance(store, Path):
        with kvemb.open(store, read_only=True, memory_budget=BUDGET) as opened:
            return whole(opened)
    keys, values, slots, scores = store.variables["table"].export(with_slots=True, with_scores=True)
    return {"key": keys, "value": values, "score": scores, **slots}


@pytest.fixture(params=quick(WIDTHS, 2))
def kind(request: pytest.FixtureRequest) -> Any:
    """An optimizer, and the widths of its slots."""
    return WIDTHS[request.param]


@pytest.fixture
def place(tmp_path: Path, kind: Any) -> Path:
    """A store, most of whose rows are cold, and two checkpoints of it: 1 and 2."""
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=DIM, hot_rows=32, optimizer=kind[0])
        train(table, 0)
        store.checkpoint(tmp_path / "1")
        train(table, 1, KEYS[::3])
        table.remove(KEYS[:5])
        store.checkpoint(tmp_path / "2")
    return tmp_path


def test_exports_have_each_slots_width(place, kind):
    found = whole(place / "store")
    assert {name: found[name].shape for name in kind[1]} == {name: (595, width) for name, width in kind[1].items()}
    with kvemb.open(place / "store", memory_budget=BUDGET) as store:
        table = store.variables["table"]
        assert table.optimizer == kind[0]
        batches = list(table.export_batches(100, with_slots=True))
        assert [batch[2][name].shape[1] for batch in batches for name in batch[2]] == [*kind[1].values()] * 6
        assert [dict(each) for each in bulk.described(table)["slots"]] == [
            {"name": name, "width": width} for name, width in kind[1].items()
        ]
        store.check(deep=True)


def test_what_changed_and_a_replica_have_them(place, tmp_path, kind):
    changes = list(kvemb.Checkpoint(place / "2").changes(place / "1"))
    now = whole(place / "2")
    keys = np.concatenate([change.keys for change in changes])
    at = np.searchsorted(now["key"], keys)
    assert sorted(keys) == sorted(set(KEYS[::3]) - set(KEYS[:5]))
    for name, width in kind[1].items():
        slots = np.concatenate([change.slots[name] for change in changes])
        assert slots.shape == (len(keys), width)
        np.testing.assert_array_equal(slots, now[name][at])
    with kvemb.restore(place / "1", tmp_path / "replica", memory_budget=BUDGET) as store:
        store.apply_delta(place / "2")
        np.testing.assert_equal(whole(store), now)


def test_the_log_brings_them_back(tmp_path, kind):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET, durability="write") as store:
        table = store.get_variable("table", dim=DIM, hot_rows=32, optimizer=kind[0])
        train(table, 0)
        train(table, 1)
        before = whole(store)
        train(table, 2)
        after = whole(store)
        copy_of_open(tmp_path / "store", tmp_path / "crashed")
    with kvemb.open(tmp_path / "crashed", memory_budget=BUDGET) as store:
        assert store.recovery is not None
        assert store.recovery.rows > 0
        np.testing.assert_equal(whole(store), after)
    assert any((before[name] != after[name]).any() for name in kind[1])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".safetensors", ".npy"])
def test_they_come_back_from_files(place, tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    assert run(["export", str(place / "store"), str(out), "--with-slots", "--with-scores"]) == 0
    import_table(out, tmp_path / "copy")
    np.testing.assert_equal(whole(tmp_path / "copy"), whole(place / "store"))


def test_other_systems_files_have_them(place, tmp_path, kind, capsys):
    for format in ("tfra", "dynamicemb", "csv"):
        command = ["export", str(place / "store"), str(tmp_path / format), "--format", format, "--with-slots"]
        assert run(command) == 0, capsys.readouterr().err
    found = whole(place / "store")
    for name in kind[1]:
        raw = next((tmp_path / "tfra").glob(f"table-{name}_mht_*-values")).read_bytes()
        assert raw == found[name].tobytes()
    together = np.concatenate([found[name] for name in kind[1]], axis=1)
    assert next((tmp_path / "dynamicemb").glob("*opt_values*")).read_bytes() == together.tobytes()
    head = (tmp_path / "csv").read_text().splitlines()[0].replace('"', "").split(",")
    assert head[1 + DIM :] == [f"{name}_{at}" for name, width in kind[1].items() for at in range(width)]


def test_slots_of_another_width_are_not_imported(place, tmp_path, kind):
    out = tmp_path / "out.parquet"
    assert run(["export", str(place / "store"), str(out), "--with-slots", "--with-scores"]) == 0
    other = Adagrad() if isinstance(kind[0], RowWiseAdagrad) else SGD()
    with kvemb.open(tmp_path / "other", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=DIM, optimizer=other)
    if isinstance(other, SGD):
        assert import_table(out, tmp_path / "other").added == 595
        return
    with pytest.raises(BadInput, match=r"slot 'accumulator' with 1 numbers, variable 'table' has it with 5; export"):
        import_table(out, tmp_path / "other")
    with kvemb.open(tmp_path / "other", read_only=True, memory_budget=BUDGET) as store:
        assert store.variables["table"].size() == 0


def test_tools_show_and_compare_them(place, kind, capsys):
    assert run(["peek", str(place / "2"), "4", "--variable", "table", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert {name: len(row[name]) for name in kind[1]} == kind[1]
    assert run(["info", str(place / "2")]) == 0
    assert f"{kind[0].name}(" in capsys.readouterr().out
    assert run(["stats", str(place / "2"), "--variable", "table"]) == 0
    assert table_stats.stats(place / "2", "table").rows == 595
    assert run(["report", str(place / "2"), str(place / "page.html")]) == 0
    (found,) = diff(place / "1", place / "2")
    assert (found.added, found.removed, found.changed) == (0, 5, 198)
    assert run(["verify", str(place / "2"), "--deep"]) == 0


def test_a_slot_alone_is_a_difference(tmp_path, kind):
    for name, change in (("one", 0), ("two", 1)):
        with kvemb.open(tmp_path / name, memory_budget=BUDGET) as store:
            table = store.get_variable("table", dim=DIM, optimizer=kind[0])
            slots = {slot: np.full((3, width), 2, np.float32) for slot, width in kind[1].items()}
            slots[max(kind[1])][1, -1] += change
            rows = bulk.Rows(np.arange(3), np.ones((3, DIM), np.float32), slots, np.ones(3), np.ones(3, np.int64))
            bulk.load(table, [rows])
    (found,) = diff(tmp_path / "one", tmp_path / "two")
    assert (found.changed, found.moved) == (1, 0)


@pytest.mark.independent
@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("width", [0, 2, DIM, DIM + 1])
def test_slots_are_loaded_with_their_own_width(tmp_path, name, width):
    optimizer, widths = WIDTHS[name]
    one = min(widths, key=lambda slot: widths[slot])
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=DIM, optimizer=optimizer)
        slots = {slot: np.ones((3, widths[slot] if slot != one else width), np.float32) for slot in widths}
        with pytest.raises(ValueError, match=rf"slot '{one}' must have shape keys.shape \+ \(width,\) = \(3, 1\), got"):
            bulk.load(table, [bulk.Rows(np.arange(3), np.ones((3, DIM), np.float32), slots)])


def test_migrate_keeps_what_both_have_and_nothing_of_another_width(place, tmp_path, kind):
    found = plan(place / "store", tmp_path / "adagrad", optimizer="adagrad:0.5")
    dropped = [name for name in kind[1] if name != "accumulator"]
    begins = "has another width: it begins at" if "accumulator" in kind[1] else "is added, with"
    assert found.steps[1:] == [
        *(f"slot {name!r} is dropped: training cannot continue without it" for name in dropped),
        f"slot 'accumulator' {begins} its initial value",
    ]
    assert migrate(found) == 595
    assert whole(tmp_path / "adagrad")["accumulator"].tolist() == [[0] * DIM] * 595
    back = plan(tmp_path / "adagrad", tmp_path / "back", optimizer=kind[0].name)
    migrate(back)
    fresh = whole(tmp_path / "back")
    assert {name: fresh[name].shape[1] for name in kind[1]} == kind[1]
    wider = plan(place / "store", tmp_path / "wider", dim=DIM + 2)
    assert wider.steps == [f"dim: {DIM} becomes {DIM + 2}: 2 zeros are added to each row"]
    migrate(wider)
    before, after = whole(place / "store"), whole(tmp_path / "wider")
    for name, width in kind[1].items():
        assert after[name].shape[1] == (width if width == 1 else DIM + 2)
        np.testing.assert_array_equal(after[name][:, :width], before[name])
        assert not after[name][:, width:].any()


@pytest.mark.independent
@pytest.mark.parametrize("other", [SGD(), Adagrad(), RowWiseAdagrad(), Adam()], ids=repr)
def test_an_optimizer_with_other_slots_is_refused(place, kind, other):
    with kvemb.open(place / "store", memory_budget=BUDGET) as store:
        if type(other) is type(kind[0]):
            assert store.get_variable("table", dim=DIM, optimizer=other).optimizer == other
            return
        with pytest.raises(SchemaMismatch, match="optimizer"):
            store.get_variable("table", dim=DIM, optimizer=other)
        table = store.get_variable("table", dim=DIM)
        with pytest.raises(SchemaMismatch, match="optimizer"):
            table.optimizer = other
        assert table.optimizer == kind[0]
