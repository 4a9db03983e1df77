"""info, ls, peek, stats and diff, against what a dict and plain numpy say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_devices import device_of
from hypothesis import given, settings
from hypothesis import strategies as st
from told import json_of

import kvemb
from kvemb import bulk, registry
from kvemb.tools import inspect, table_stats
from kvemb.tools.cli import run
from kvemb.tools.commands.look import _brief
from kvemb.tools.diff import diff
from kvemb.tools.failures import BadInput

pytest.importorskip("pyarrow")
BUDGET = "4MiB"
DIM = 4


def values(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store, and two checkpoints of it: 1 and 2."""
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable(
            "table", dim=DIM, optimizer=kvemb.optimizers.Adagrad(), restrict_policy=kvemb.FrequencyRestrictPolicy()
        )
        other = store.get_variable("other", "uint64", "float16", 2, initializer=kvemb.RandomUniform(-1, 1, seed=4))
        other.upsert([2**64 - 1], np.ones((1, 2), np.float16))
        table.upsert(np.arange(2000), values(0, 2000))
        store.checkpoint(tmp_path / "1")
        table.lookup([5, 5, 6])
        table.upsert([7, 3000], values(1, 2))
        table.remove([8, 9])
        store.checkpoint(tmp_path / "2")
    return tmp_path


def test_info_and_ls_say_what_is_there(place, capsys):
    found = inspect.info(place / "2")
    assert (found.kind, found.parent) == ("checkpoint", kvemb.Checkpoint(place / "1").id)
    assert {each.name: each.rows for each in found.variables} == {"table": 1999, "other": 1}
    assert found.nbytes == sum((place / "2" / name).stat().st_size for name in found.files)
    assert inspect.info(place / "store").kind == "store"
    assert run(["info", str(place / "2")]) == 0
    out = capsys.readouterr().out
    parts = ("1,999 rows of 4 float32, keys int64", "uses recorded by 1 call", "frequency(half_life=None)")
    for part in (*parts, found.id):
        assert part in out
    assert "optimizer: adagrad(learning_rate=0.01)\n" in out, "what it has by default is not printed"
    assert "step" not in out
    told = json_of(capsys, "info", place / "2")
    assert told["variables"][1]["described"]["dim"] == DIM
    assert (told["recording_calls"], told["variables"][1]["described"]["recording_calls"]) == (1, 1)
    assert "step" not in told
    assert "step" not in told["variables"][1]["described"]
    assert run(["ls", str(place / "2")]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["1", "other"], ["1,999", "table"]]
    assert json_of(capsys, "ls", place / "2", "--files") == found.files


def test_info_lists_marks_and_every_command_reads_one_like_a_checkpoint(tmp_path, capsys):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=DIM)
        table.upsert(np.arange(2000), values(0, 2000))
        best = store.mark("best", extra={"loss": 0.1}, block=True)
        store.checkpoint(tmp_path / "then")
        table.upsert(np.arange(2000), values(1, 2000))
        bulk.compact(store)
        unnamed = store.mark(block=True)
    told = json_of(capsys, "info", tmp_path / "store")["marks"]
    assert [(each["id"], each["name"], each["path"]) for each in told] == [
        (best.id, "best", str(best.path)),
        (unnamed.id, None, str(unnamed.path)),
    ]
    assert told[0]["kept_bytes"] > 2000 * DIM * 4
    assert run(["info", str(tmp_path / "store")]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if "  mark" in line]
    assert [line[:2] for line in lines] == [["mark", "best"], ["mark", f"{unnamed.path},"]]
    found = json_of(capsys, "info", best.path)
    assert (found["kind"], found["extra"], found["marks"]) == ("checkpoint", {"loss": 0.1}, [])
    assert json_of(capsys, "ls", best.path) == {"table": 2000}
    assert [row["key"] for row in json_of(capsys, "peek", best.path, "7")["rows"]] == [7]
    assert json_of(capsys, "stats", best.path)["rows"] == 2000
    (differs,) = json_of(capsys, "diff", best.path, tmp_path / "then")["variables"]
    assert (differs["added"], differs["removed"], differs["changed"]) == (0, 0, 0)
    assert json_of(capsys, "verify", best.path, "--deep")["rows"] == {"table": 2000}
    for place, says in ((tmp_path / "store", True), (best.path, False)):
        assert run(["report", str(place), str(tmp_path / f"{says}.html")]) == 0
        page = (tmp_path / f"{says}.html").read_text()
        assert ("Marks" in page and str(best.path) in page) == says
    assert run(["export", str(best.path), str(tmp_path / "rows.csv")]) == 0
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 2001
    assert run(["restore", str(best.path), str(tmp_path / "again")]) == 0
    with kvemb.open(tmp_path / "again", read_only=True, memory_budget=BUDGET) as again:
        assert again.variables["table"].size() == 2000


def test_info_shows_the_bounds_of_a_table(tmp_path, capsys):
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        store.get_variable("both", dim=2, max_rows=1000, ttl=86_400)
        store.get_variable("one", dim=2, max_rows=1)
        store.get_variable("none", dim=2)
    assert run(["info", str(tmp_path / "store")]) == 0
    bounds = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if "bounds:" in line]
    assert bounds == ["1,000 rows and 86,400 seconds since a row's last change", "1 row"]
    told = {each["name"]: each["described"] for each in json_of(capsys, "info", tmp_path / "store")["variables"]}
    assert (told["both"]["max_rows"], told["both"]["ttl"], told["none"]["ttl"]) == (1000, 86_400.0, None)


@pytest.mark.parametrize(
    ("optimizer", "printed"),
    [
        (kvemb.optimizers.Adam(), "adam(learning_rate=0.001)"),
        (kvemb.optimizers.Adam(bias_correction="global", beta_1=0.5), "adam(learning_rate=0.001, beta_1=0.5, bias_c"),
        (kvemb.optimizers.SGD(0.5, clip_norm=1), "sgd(learning_rate=0.5, clip_norm=1.0)"),
    ],
    ids=repr,
)
def test_info_prints_what_an_optimizer_does_not_have_by_default(optimizer, printed):
    assert _brief(optimizer.to_json()).startswith(printed)


@pytest.fixture
def three_tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the statistics of a variable said of its tiers when a store was saved, as manifests say it."""
    device_of("cpu")
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:CudaOnCpuTable")
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        for name, devices in (("table", "gpu:0"), ("other", None)):
            rows = np.ones((2000, 128), np.float32)
            store.get_variable(name, dim=128, devices=devices).upsert(np.arange(2000), rows)
        store.checkpoint(tmp_path / "saved")
        with kvemb.CheckpointManager(tmp_path / "series") as series:
            series.save(store)
            series.push(tmp_path / "pushed")
        told = {place: each for place, each in store.variables["table"].stats.tiers.items() if place != "disk"}
    return {place: {"rows": each.rows, "bytes": each.nbytes} for place, each in told.items()}


@pytest.mark.slow
def test_info_says_which_memory_rows_were_hot_in(three_tiers, tmp_path, capsys):
    assert set(three_tiers) == {"gpu:0", "host"}
    assert min(each["rows"] for each in three_tiers.values()) > 100
    kvemb.restore(tmp_path / "saved", tmp_path / "restored").close(flush=False)
    for name in ("store", "saved", "restored", "pushed"):
        found = {each.name: each.tiers for each in inspect.info(tmp_path / name).variables}
        assert found == {"table": three_tiers, "other": {}}
        assert run(["info", str(tmp_path / name)]) == 0
        out = " ".join(capsys.readouterr().out.split())
        on_gpu, on_host = (three_tiers[place]["rows"] for place in ("gpu:0", "host"))
        assert out.count("hot when saved") == 1
        assert f"hot when saved: {on_gpu:,} on gpu:0 in " in out
        assert f", {on_host:,} in the host's memory in " in out
    assert json_of(capsys, "info", tmp_path / "store")["variables"][1]["tiers"] == three_tiers
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        store.get_variable("table").upsert([5000], np.ones((1, 128), np.float32))
    assert kvemb.Checkpoint.at(tmp_path / "store").tiers == {}, "no row was on a GPU when this was saved"


def test_peek_shows_rows_and_their_nearest(place, capsys):
    found = inspect.peek(place / "2", "table", [5, 8], neighbours=3)
    assert found.missing == [8]
    assert inspect.peek(place / "2", "table", [6, 8, 5, 6]).rows.keys.tolist() == [6, 5, 6]
    assert found.rows.values.tolist() == values(0, 2000)[[5]].tolist()
    with kvemb.open(place / "2", read_only=True, memory_budget=BUDGET) as store:
        keys, rows = store.variables["table"].export()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near = unit @ unit[keys == 5][0]
    near[keys == 5] = -2
    best = np.argsort(-near)[:3]
    assert [key for key, _ in found.neighbours[5]] == keys[best].tolist()
    np.testing.assert_allclose([cosine for _, cosine in found.neighbours[5]], near[best], rtol=1e-5)
    assert run(["peek", str(place / "2"), "--variable", "other"]) == 0
    assert str(2**64 - 1) in capsys.readouterr().out
    assert json_of(capsys, "peek", place / "2", "8", "--variable", "table", code=1) == {"rows": [], "missing": [8]}
    assert run(["peek", str(place / "2"), "9", "6", "8", "5", "9", "--variable", "table"]) == 1
    _, *rows = map(str.split, capsys.readouterr().out.splitlines())
    assert [key for key, *_ in rows] == ["9", "6", "8", "5", "9"]
    assert [key for key, *said in rows if said == ["missing"]] == ["9", "8", "9"]
    assert run(["peek", str(place / "2"), "-1", "--variable", "other"]) == 1
    assert "key -1 does not fit uint64" in capsys.readouterr().err
    assert [
        row["key"] for row in json_of(capsys, "peek", place / "2", "--variable", "table", "--count", "3")["rows"]
    ] == [0, 1, 2]


def test_scores_that_are_times_are_shown_as_times(tmp_path, capsys):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        for name, clock in (("timed", "seconds"), ("stepped", "steps")):
            policy = kvemb.TimestampRestrictPolicy(clock=clock)
            store.get_variable(name, dim=DIM, restrict_policy=policy).upsert([1, 2], np.ones((2, DIM), np.float32))
    for command in ("peek", "stats"):
        for name, score in (("timed", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), ("stepped", r"\d\b(?!-)")):
            assert run([command, str(tmp_path / "store"), "--variable", name]) == 0
            shown = " ".join(capsys.readouterr().out.split())
            assert re.search(f"score {score}", shown), shown


def test_stats_are_those_of_numpy(tmp_path, capsys):
    chance = np.random.default_rng(0)
    rows = chance.standard_normal((1000, DIM)).astype(np.float32)
    rows[500:520] = rows[0]
    rows[3, 1], rows[4, 0] = np.nan, np.inf
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=DIM, initializer=kvemb.RandomNormal(seed=2))
        rows[10:17] = table.initializer.rows(np.arange(10, 17), DIM, np.float32)
        table.upsert(np.arange(1000), rows)
        steps = chance.integers(0, 50, 1000)
        bulk.load(table, [bulk.Rows(np.arange(1000), rows, None, chance.random(1000), steps)])
    found = table_stats.stats(tmp_path / "store")
    clean = rows.astype(np.float64)
    clean[~np.isfinite(clean)] = np.nan
    np.testing.assert_allclose(found.mean, np.nanmean(clean, axis=0))
    np.testing.assert_allclose(found.spread, np.nanstd(clean, axis=0))
    assert (found.rows, found.dead, found.duplicates) == (1000, 7, 20)
    assert (found.nan + found.infinite, found.not_finite_keys) == (2, [3, 4])
    finite = np.isfinite(rows).all(axis=1)
    for numbers, spread in (
        (np.linalg.norm(clean[finite], axis=1), found.sizes),
        (found.recording_calls - steps, found.ages),
    ):
        assert spread.bins.counts.tolist() == np.histogram(numbers, spread.bins.edges)[0].tolist()
    assert found.scores is None, "there is no policy"
    assert run(["stats", str(tmp_path / "store")]) == 0
    assert "1 row with NaN, 1 row with infinity: 3, 4" in capsys.readouterr().out
    with kvemb.open(tmp_path / "empty", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=DIM)
    assert table_stats.stats(tmp_path / "empty").rows == 0
    assert json_of(capsys, "stats", tmp_path / "empty")["duplicates"] == 0


def test_all_tables_are_shown_in_one_call(place, capsys):
    each = {name: json_of(capsys, "stats", place / "2", "--variable", name) for name in ("other", "table")}
    assert json_of(capsys, "stats", place / "2", "--all") == {"variables": list(each.values())}
    rows = {name: json_of(capsys, "peek", place / "2", "--variable", name)["rows"] for name in ("other", "table")}
    wanted = [{"variable": name, "rows": found} for name, found in rows.items()]
    assert json_of(capsys, "peek", place / "2", "--all") == {"variables": wanted}
    for command in ("stats", "peek"):
        assert run([command, str(place / "2"), "--all"]) == 0
        told = capsys.readouterr().out
        titles = [line for line in told.splitlines() if line.startswith("kvemb ")]
        assert titles == [f"kvemb {command} {place / '2'} --variable {name}" for name in ("other", "table")]


def test_diff_reads_what_was_recorded_and_finds_the_same_without(place, tmp_path, capsys):
    with kvemb.restore(place / "2", tmp_path / "copy", memory_budget=BUDGET) as store:
        other = bulk.described(store.variables["table"])
        with kvemb.open(tmp_path / "stranger", memory_budget=BUDGET) as stranger:
            for name in ("table", "other"):
                like = bulk.described(store.variables[name])
                bulk.load(bulk.make(stranger, name, like), bulk.scan(store.variables[name]))
    assert other["rows"] == 1999
    known, found = diff(place / "1", place / "2"), diff(place / "1", tmp_path / "stranger")
    assert [each.recorded for each in known] == [True, True]
    assert [each.recorded for each in found] == [False, False]
    for one, two in zip(known, found, strict=True):
        assert (one.added, one.removed, one.changed, one.moved) == (two.added, two.removed, two.changed, two.moved)
        assert one.most == two.most
        assert (one.l2, one.cosine) == (two.l2, two.cosine)
    table = known[1]
    # 5 and 6 were looked up, 7 was replaced.
    assert (table.added, table.removed, table.changed, table.moved) == (1, 2, 3, 1)
    assert [each.key for each in table.most] == [7]
    before, after = values(0, 2000)[7].astype(float), values(1, 2)[0].astype(float)
    assert table.most[0].l2 == pytest.approx(np.linalg.norm(after - before))
    assert table.most[0].cosine == pytest.approx(before @ after / np.linalg.norm(before) / np.linalg.norm(after))
    for found_of in (table.l2, table.cosine):
        assert len(found_of.upto) == len(found_of.counts)
        assert sum(found_of.counts) == 1
    assert run(["diff", str(place / "1"), str(place / "2")]) == 0
    told = capsys.readouterr().out
    assert "1 added, 2 removed, 3 changed; read from the recorded changes" in told
    assert "more: 1" in told, "the row that was replaced moved further than it was long"


@pytest.mark.slow
def test_diff_writes_the_rows_that_differ(place, tmp_path, capsys):
    import pyarrow.parquet as pq

    out = tmp_path / "rows.parquet"
    command = ["diff", str(place / "1"), str(place / "2"), "--out", str(out)]
    assert run(command) == 2
    assert "have the variables other, table; name one: --variable other" in capsys.readouterr().err
    assert not out.exists()
    assert run([*command, "--variable", "table"]) == 0
    rows = {row["key"]: row for row in pq.read_table(out).to_pylist()}
    assert {key: row["change"] for key, row in rows.items()} == {
        **{5: "changed", 6: "changed", 7: "changed"},
        **{8: "removed", 9: "removed", 3000: "added"},
    }
    assert rows[3000]["before"] is None
    assert rows[8]["after"] is None
    assert rows[7]["before"] == values(0, 2000)[7].tolist()
    assert rows[5]["l2"] == 0.0
    capsys.readouterr()


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_diff_of_any_two_tables(tmp_path_factory, data):
    tables = []
    place = tmp_path_factory.mktemp("diff")
    for name in ("a", "b"):
        model = data.draw(st.dictionaries(st.integers(-5, 30), st.integers(0, 2), max_size=20))
        with kvemb.open(place / name, memory_budget=BUDGET) as store:
            table = store.get_variable("table", dim=1)
            keys = np.array(list(model), np.int64)
            bulk.load(table, [bulk.Rows(keys, np.array(list(model.values()), np.float32).reshape(-1, 1))])
        tables.append(model)
    (found,) = diff(place / "a", place / "b", top=100)
    both = tables[0].keys() & tables[1].keys()
    assert found.added == len(tables[1].keys() - both)
    assert found.removed == len(tables[0].keys() - both)
    moved = {key: abs(tables[0][key] - tables[1][key]) for key in both if tables[0][key] != tables[1][key]}
    assert {each.key: each.l2 for each in found.most} == moved


def test_tables_of_other_shapes_are_refused(place, tmp_path):
    with kvemb.open(tmp_path / "wide", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=9)
    with pytest.raises(BadInput, match=r"has dim 4 in .* and 9 in .*; convert one of them with kvemb migrate"):
        diff(place / "1", tmp_path / "wide", variable="table")


def test_diff_lists_a_table_that_one_side_lacks_and_compares_the_others(tmp_path, capsys):
    for name, tables in (("a", ("both", "old")), ("b", ("both", "new"))):
        with kvemb.open(tmp_path / name, memory_budget=BUDGET) as store:
            for at, table in enumerate(tables, 1):
                store.get_variable(table, dim=DIM).upsert(np.arange(at), values(at, at))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    found = {each.variable: (each.table, each.added, each.removed, each.changed) for each in diff(a, b)}
    assert found == {"both": ("common", 0, 0, 0), "new": ("added", 2, 0, 0), "old": ("removed", 0, 2, 0)}
    assert run(["diff", a, b]) == 0
    told = capsys.readouterr().out
    for line in (r"both .*no difference", r"new .*table added, with 2 rows", r"old .*table removed, with 2 rows"):
        assert re.search(line, told), told
    assert run(["diff", a, b, "--json", "--variable", "new"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["variables"]
    assert (only["variable"], only["table"], only["added"], only["most"]) == ("new", "added", 2, [])
    assert run(["diff", a, b, "--out", str(tmp_path / "o.parquet"), "--variable", "new"]) == 1
    assert "have no variable 'new'; they have both" in capsys.readouterr().err
