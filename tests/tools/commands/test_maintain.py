"""restrict, compact and migrate: what they say is what they do, and what fails changes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import quick
from told import json_of

import kvemb
from kvemb import bulk
from kvemb.tools.cli import run
from kvemb.tools.failures import BadInput
from kvemb.tools.migrate import migrate, plan
from kvemb.tools.named import POLICIES

pytest.importorskip("pyarrow")
BUDGET = "4MiB"
DIM = 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of 1,000 rows with slots and scores from 0 to 999, closed."""
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable(
            "table",
            dim=DIM,
            optimizer=kvemb.optimizers.Adagrad(0.5, 0.25),
            restrict_policy=kvemb.FrequencyRestrictPolicy(),
        )
        keys = np.arange(1000)
        rows = np.random.default_rng(0).standard_normal((1000, DIM)).astype(np.float32)
        bulk.load(table, [bulk.Rows(keys, rows, {"accumulator": rows * rows}, keys.astype(float), keys)])
    return tmp_path / "store"


def whole(path: Path) -> tuple[dict[str, Any], bulk.Rows]:
    with kvemb.open(path, read_only=True, memory_budget=BUDGET) as store:
        table = store.variables["table"]
        (rows,) = bulk.scan(table)
        return bulk.described(table), rows


def test_restrict_keeps_the_highest_scores_and_says_so_before(store, capsys):
    for _ in range(2):
        told = json_of(capsys, "restrict", store, "300", "--dry-run")
        assert (told["rows_before"], told["rows_after"], told["dry_run"]) == (1000, 300, True)
    assert run(["restrict", str(store), "300", "--dry-run"]) == 0
    assert "FrequencyRestrictPolicy(half_life=None)" in capsys.readouterr().out
    summary = json_of(capsys, "restrict", store, "300")
    assert (summary["rows_before"], summary["rows_after"]) == (1000, 300)
    assert whole(store)[1].keys.tolist() == list(range(700, 1000))
    assert run(["restrict", str(store), "300"]) == 0
    assert "300 rows before, 300 after: 0 removed" in capsys.readouterr().out


def test_compact_gives_room_back(store, capsys):
    with kvemb.open(store, memory_budget=BUDGET) as opened:
        opened.variables["table"].remove(np.arange(900))
    summary = json_of(capsys, "compact", store)
    assert summary["bytes_after"] < summary["bytes_before"] / 2
    assert whole(store)[1].keys.tolist() == list(range(900, 1000))
    assert kvemb.verify(store, deep=True)


def test_compact_and_migrate_leave_marks_as_they_are(store, tmp_path, capsys):
    before = whole(store)
    with kvemb.open(store, memory_budget=BUDGET) as opened:
        opened.mark("whole")
        opened.variables["table"].remove(np.arange(900))
    assert json_of(capsys, "compact", store)["marks"] == 1
    assert run(["compact", str(store)]) == 0
    assert f"1 mark keeps its files: kvemb info {store} lists them" in capsys.readouterr().out
    assert run(["migrate", str(store), "--optimizer", "sgd", "--value-dtype", "float16", "--yes"]) == 0
    assert kvemb.verify(store, deep=True)
    with kvemb.open(store, memory_budget=BUDGET) as opened:
        assert opened.variables["table"].value_dtype == np.float16
        table = opened.variables["table"]
        opened.rollback("whole")
        with pytest.raises(kvemb.errors.Closed, match="was another variable at the mark"):
            table.size()
    after = whole(store)
    assert after[0] == before[0]
    for one, other in zip(vars(before[1]).values(), vars(after[1]).values(), strict=True):
        np.testing.assert_equal(one, other)


def test_a_migration_and_a_compaction_are_undone_by_going_back_to_a_mark_in_between(store, capsys):
    assert run(["migrate", str(store), "--optimizer", "sgd", "--yes"]) == 0
    with kvemb.open(store, memory_budget=BUDGET) as opened:
        mark = opened.mark(block=True)
    then = whole(store)
    assert run(["compact", str(store)]) == 0
    assert run(["migrate", str(store), "--dim", "2", "--yes"]) == 0
    with kvemb.open(store, memory_budget=BUDGET) as opened:
        opened.rollback(mark)
    assert whole(store)[0] == then[0]
    np.testing.assert_array_equal(whole(store)[1].values, then[1].values)
    assert kvemb.verify(store, deep=True)


def test_migrating_to_another_optimizer_drops_its_slots_and_keeps_the_rows(store, tmp_path):
    found = plan(store, tmp_path / "sgd", optimizer="sgd")
    assert found.steps == [
        "optimizer: adagrad becomes sgd, learning rate 0.001 (the default; sgd:RATE for another)",
        "slot 'accumulator' is dropped: training cannot continue without it",
    ]
    assert migrate(found) == 1000
    described, rows = whole(tmp_path / "sgd")
    before = whole(store)[1]
    assert (described["optimizer"]["name"], described["slots"], rows.slots) == ("sgd", [], {})
    for name in ("keys", "values", "scores", "steps"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(before, name))
    back = plan(tmp_path / "sgd", tmp_path / "back", optimizer="adagrad")
    assert "slot 'accumulator' is added, with its initial value" in back.steps
    migrate(back)
    assert set(whole(tmp_path / "back")[1].slots["accumulator"].ravel().tolist()) == {0.0}
    anew = plan(store, tmp_path / "reset", slots="reset")
    assert anew.steps == ["slot 'accumulator' is reset: its values are lost"]
    migrate(anew)
    assert set(whole(tmp_path / "reset")[1].slots["accumulator"].ravel().tolist()) == {0.25}


def test_another_dim_dtype_and_key_dtype(store, tmp_path):
    before = whole(store)[1]
    found = plan(store, tmp_path / "wide", dim=6, value_dtype="float16", key_dtype="int32", policy="timestamp")
    assert found.steps == [
        "value_dtype: float32 becomes float16: values are rounded; numbers that are too large are refused",
        "key_dtype: int64 becomes int32: keys that do not fit are refused",
        "dim: 4 becomes 6: 2 zeros are added to each row",
        "policy: frequency becomes timestamp:seconds; scores start again",
    ]
    migrate(found)
    described, rows = whole(tmp_path / "wide")
    assert (described["dim"], described["value_dtype"], described["key_dtype"]) == (6, "float16", "int32")
    assert described["policy"]["kind"] == "timestamp"
    np.testing.assert_array_equal(rows.values[:, :4], before.values.astype(np.float16))
    assert not rows.values[:, 4:].any()
    np.testing.assert_array_equal(rows.slots["accumulator"][:, :4], before.slots["accumulator"])
    assert set(rows.slots["accumulator"][:, 4:].ravel().tolist()) == {0.25}
    assert rows.scores.min() > 1e9
    assert rows.scores.max() - rows.scores.min() < 600
    cut = plan(store, tmp_path / "cut", dim=3)
    assert cut.steps == ["dim: 4 becomes 3: the last 1 values of each row are lost"]
    migrate(cut)
    np.testing.assert_array_equal(whole(tmp_path / "cut")[1].values, before.values[:, :3])


def test_it_asks_and_says_what_it_will_do(store, tmp_path, capsys):
    command = ["migrate", str(store), str(tmp_path / "out"), "--dim", "2"]
    assert run(command) == 2
    told = capsys.readouterr()
    assert "the last 2 values of each row are lost" in told.out
    assert "give --yes" in told.err
    assert not (tmp_path / "out").exists()
    assert run([*command, "--yes"]) == 0
    assert "1,000 rows" in capsys.readouterr().out
    assert run([*command, "--yes"]) == 1
    assert "exists; name a new directory" in capsys.readouterr().err


def test_a_row_that_does_not_fit_leaves_no_store(store, tmp_path):
    with pytest.raises(BadInput, match="values of the source do not fit int8"):
        migrate(plan(store, tmp_path / "out", value_dtype="int8", optimizer="none"))
    assert os.listdir(tmp_path) == ["store"]


def test_scores_of_another_scale_begin_anew_and_others_stay(store, tmp_path):
    before = whole(store)[1].scores
    half = plan(store, tmp_path / "half", policy="frequency:1000")
    assert half.steps == ["policy: frequency becomes frequency:1000; scores start again"]
    migrate(half)
    described, rows = whole(tmp_path / "half")
    assert described["policy"] == kvemb.FrequencyRestrictPolicy(half_life=1000.0).to_json()
    assert len(set(rows.scores.tolist())) == 1
    none = plan(store, tmp_path / "none", policy="none")
    assert none.steps == ["policy: frequency becomes none; scores are kept"]
    migrate(none)
    assert whole(tmp_path / "none")[1].scores.tolist() == before.tolist()


def test_a_variable_without_a_policy_gets_any_of_them(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=DIM)
        table.upsert([1, 2], np.ones((2, DIM), np.float32))
        table.lookup([1, 1, 1])
    began = time.time()
    for name, (kind, _) in POLICIES.items():
        migrate(plan(tmp_path / "store", tmp_path / name, policy=name))
        with kvemb.open(tmp_path / name, memory_budget=BUDGET) as store:
            table = store.get_variable("table", restrict_policy=kind)
            scores = table.restrict_policy.status([1, 2]).tolist()
            if name in ("frequency", "norm"):
                assert scores == [4, 1], "uses, as they were counted without a policy"
            else:
                assert scores[0] == scores[1], "as after one use now"
            if name in ("timestamp", "time_to_live"):
                assert scores[0] >= began
            assert table.restrict(1) == 1


def test_every_parameter_of_an_optimizer_can_be_given(store, tmp_path):
    found = plan(store, tmp_path / "rms", optimizer="rmsprop:0.1,centered=true,momentum=0.5")
    assert found.steps[0] == "optimizer: adagrad becomes rmsprop, learning rate 0.1, centered true, momentum 0.5"
    migrate(found)
    described = whole(tmp_path / "rms")[0]
    made = kvemb.optimizers.RMSProp(0.1, centered=True, momentum=0.5)
    assert (described["optimizer"], [slot["name"] for slot in described["slots"]]) == (
        made.to_json(),
        ["v", "mean", "velocity"],
    )
    found = plan(store, tmp_path / "clipped", optimizer="adagrad:clip_norm=1,learning_rate=0.5")
    assert found.steps == ["clip norm: none becomes 1"]
    migrate(found)
    described, rows = whole(tmp_path / "clipped")
    assert described["optimizer"] == {**whole(store)[0]["optimizer"], "clip_norm": 1.0}
    np.testing.assert_array_equal(rows.slots["accumulator"], whole(store)[1].slots["accumulator"])


def test_linear_of_ftrl_follows_the_rows_that_are_migrated(store, tmp_path):
    migrate(plan(store, tmp_path / "ftrl", optimizer="ftrl:0.5"))
    _, rows = whole(tmp_path / "ftrl")
    slots = {name: slot.copy() for name, slot in rows.slots.items()}
    np.testing.assert_array_equal(slots["accumulator"], whole(store)[1].slots["accumulator"])
    kvemb.optimizers.Ftrl(0.5).match_slots(rows.values, slots)
    np.testing.assert_array_equal(slots["linear"], rows.slots["linear"])
    with kvemb.open(tmp_path / "ftrl", memory_budget="4MiB") as opened:
        (table,) = opened.variables.values()
        table.apply_gradients(rows.keys, np.zeros_like(rows.values))
        np.testing.assert_allclose(table.lookup(rows.keys), rows.values, rtol=1e-6, atol=1e-6)


def test_a_parameter_that_is_the_same_is_no_change(store, tmp_path):
    for optimizer in ("adagrad:0.5", "adagrad:clip_norm=none"):
        with pytest.raises(BadInput, match=f"has the optimizer {optimizer} already"):
            plan(store, tmp_path / "no", optimizer=optimizer)


@pytest.mark.parametrize(
    ("properties", "change", "line"),
    [
        ({"initializer": [1.0, 2.0, 3.0, 4.0]}, ["--dim", "5"], "initializer: initializer must"),
        (
            {"initializer": kvemb.RandomUniform(-1, 1)},
            ["--value-dtype", "int8"],
            "initializer: initializer of int8",
        ),
        (
            {"optimizer": kvemb.optimizers.Adagrad()},
            ["--value-dtype", "int8"],
            "optimizer must be null for values of int8",
        ),
        ({"initializer": 1e6}, ["--value-dtype", "float16"], "initializer: initializer must fit float16"),
    ],
)
def test_what_there_cannot_be_is_refused_before_anybody_is_asked(tmp_path, capsys, properties, change, line):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=DIM, **properties)
    assert run(["migrate", str(tmp_path / "store"), str(tmp_path / "out"), *change]) == 1
    told = capsys.readouterr()
    assert f"variable 'table' cannot be migrated like this: {line}" in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_drop_asks_and_takes_a_variable_out(store, capsys):
    with kvemb.open(store, memory_budget=BUDGET) as opened:
        opened.get_variable("kept", dim=2).upsert([1], [[1.0, 2.0]])
        assert run(["drop", str(store), "--variable", "table", "--yes"]) == 3, "it is open"
    assert run(["drop", str(store), "--variable", "table"]) == 2
    assert "drop asks before it writes" in capsys.readouterr().err
    assert run(["drop", str(store), "--variable", "tabel", "--yes"]) == 1
    assert "no variable 'tabel'; it has kept, table" in capsys.readouterr().err
    summary = json_of(capsys, "drop", store, "--variable", "table", "--yes")
    assert (summary["variable"], summary["rows"]) == ("table", 1000)
    assert summary["bytes_after"] < summary["bytes_before"]
    with kvemb.open(store, memory_budget=BUDGET) as opened:
        assert list(opened.variables) == ["kept"]


class TestInPlace:
    """Without OUT a variable changes in its store, at once or not at all."""

    @pytest.mark.parametrize(
        ("change", "property_", "becomes"),
        quick(
            [
                ({"optimizer": "adam:0.5"}, "optimizer", {**kvemb.optimizers.Adam(0.5).to_json()}),
                ({"value_dtype": "float16"}, "value_dtype", "float16"),
                ({"policy": "frequency:100"}, "policy", kvemb.FrequencyRestrictPolicy(100.0).to_json()),
                ({"policy": "timestamp:steps"}, "policy", kvemb.TimestampRestrictPolicy("steps").to_json()),
                ({"dim": 2}, "dim", 2),
                ({"key_dtype": "int32"}, "key_dtype", "int32"),
            ],
            3,
            several=True,
        ),
    )
    def test_it_is_as_in_a_copy_and_all_other_variables_stay(self, store, tmp_path, change, property_, becomes):
        with kvemb.open(store, memory_budget=BUDGET) as open_store:
            other = open_store.get_variable("other", dim=3, max_rows=500)
            other.upsert(np.arange(200), np.ones((200, 3), np.float32))
            before = open_store.id
        migrate(plan(store, tmp_path / "copy", variable="table", **change))
        assert migrate(plan(store, None, variable="table", **change)) == 1000
        (described, rows), (copied, copies) = whole(store), whole(tmp_path / "copy")
        assert described == copied
        assert described[property_] == becomes
        for name in ("keys", "values", "scores", "steps"):
            np.testing.assert_array_equal(getattr(rows, name), getattr(copies, name))
        with kvemb.open(store, memory_budget=BUDGET) as again:
            assert (again.id, again.recovery) == (before, None)
            assert again.variables["other"].size() == 200
            assert again.variables["other"].max_rows == 500
            again.check(deep=True)
            table = again.variables["table"]
            table.upsert([5], np.ones((1, table.dim)))
            assert table.size() == 1000

    def test_series_replicas_and_followers_go_on(self, store, tmp_path):
        with kvemb.CheckpointManager(tmp_path / "series") as series:
            with kvemb.open(store, memory_budget=BUDGET) as one:
                one.get_variable("other", dim=2).upsert([1], [[1.0, 1.0]])
                series.save(one)
            replica = kvemb.restore(tmp_path / "series", tmp_path / "replica", memory_budget=BUDGET)
            reader = kvemb.open(store, follow=True, memory_budget=BUDGET)
            seen, other = reader.variables["table"], reader.variables["other"]
            migrate(plan(store, None, variable="table", optimizer="adam", value_dtype="float16"))
            assert reader.refresh()
            with pytest.raises(kvemb.errors.Closed, match="dropped"):
                seen.lookup([1])
            assert (reader.variables["table"].value_dtype, other.size()) == ("float16", 1)
            with kvemb.open(store, memory_budget=BUDGET) as one:
                assert one.variables["table"].optimizer == kvemb.optimizers.Adam()
                replica.apply_delta(series.save(one))
            assert replica.variables["table"].export()[1].dtype == np.float16
            assert replica.variables["table"].size() == 1000
            for each in (reader, replica):
                each.close()
            with kvemb.restore(tmp_path / "series", tmp_path / "last", memory_budget=BUDGET) as last:
                assert last.variables["table"].optimizer == kvemb.optimizers.Adam()

    def test_what_fails_leaves_the_store_as_it_was(self, store, monkeypatch):
        before = whole(store)
        with kvemb.open(store, memory_budget=BUDGET) as one:
            one.variables["table"].upsert([5], [[1e30] * DIM])
        with pytest.raises(BadInput, match="1e\\+30"):
            migrate(plan(store, None, value_dtype="float16"))
        for step in ("load", "make"):
            with monkeypatch.context() as patched:
                patched.setattr(bulk, step, lambda *arguments, **named: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    migrate(plan(store, None, policy="none"))
        described, rows = whole(store)
        assert described == before[0]
        assert rows.values[5].tolist() == pytest.approx([1e30] * DIM)
        np.testing.assert_array_equal(rows.scores, before[1].scores)

    def test_it_asks_and_says_what_it_does(self, store, tmp_path, capsys):
        command = ["migrate", str(store), "--optimizer", "sgd:0.1"]
        assert run(command) == 2
        assert "1,000 rows of 'table' in place:" in capsys.readouterr().out
        assert run([*command, "--yes"]) == 0
        assert f"{store}, 1,000 rows" in capsys.readouterr().out
        with kvemb.open(store, memory_budget=BUDGET) as one:
            one.checkpoint(tmp_path / "saved")
        assert run(["migrate", str(tmp_path / "saved"), "--optimizer", "adam", "--yes"]) == 2
        assert "is a checkpoint, which never changes; name a new directory OUT" in capsys.readouterr().err

    def test_the_sightings_of_an_admission_stay(self, tmp_path):
        with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as one:
            table = one.get_variable("v", dim=2, optimizer=kvemb.optimizers.SGD(), admission=kvemb.Admission(3))
            table.apply_gradients([5, 5, 6, 6, 6], np.ones((5, 2)))
        migrate(plan(tmp_path / "store", None, optimizer="adagrad"))
        with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as one:
            table = one.get_variable("v", admission=kvemb.Admission(3))
            table.apply_gradients([5], np.ones((1, 2)))
            assert table.export()[0].tolist() == [5, 6]

    def test_what_remake_cannot_do_is_refused(self, store):
        with kvemb.open(store, memory_budget=BUDGET, durability="write") as one:
            like = bulk.described(one.variables["table"])
            with pytest.raises(ValueError, match="variable 'table' is open; close the store, open it again, and call"):
                bulk.remake(one, "table", like)
            with pytest.raises(KeyError, match="there is no variable 'none'"):
                bulk.remake(one, "none", like)
        with (
            kvemb.open(store, memory_budget=BUDGET, durability="write") as one,
            pytest.raises(ValueError, match="opened with durability='write', which makes durable points by itself"),
        ):
            bulk.remake(one, "table", like)
        with kvemb.open(store, memory_budget=BUDGET) as one:
            with pytest.raises(kvemb.errors.UnsupportedFormat, match="dim"):
                bulk.remake(one, "table", {**like, "dim": 0})
            assert one.variables["table"].size() == 1000
