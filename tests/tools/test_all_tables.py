"""kvemb export --all: each variable to a file of its name, all of one durable point, or none at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from told import json_of

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.export import export_all
from kvemb.tools.importing import import_table

pytest.importorskip("pyarrow")
NAMES = ("50%", "ads/clicks", "users")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with three tables, and a series of two checkpoints of it."""
    with (
        kvemb.open(tmp_path / "store", memory_budget="4MiB") as store,
        kvemb.CheckpointManager(tmp_path / "series") as series,
    ):
        tables = [store.get_variable(name, dim=2, optimizer=kvemb.optimizers.Adagrad()) for name in NAMES]
        for number, table in enumerate(tables):
            table.upsert(np.arange(5), np.full((5, 2), number))
        series.save(store)
        tables[2].upsert([9], [[7, 7]])
        tables[2].remove([0])
        series.save(store)
    return tmp_path


def test_each_table_is_imported_again_as_it_was(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ["--all", "--format", "parquet", "--with-slots", "--with-scores"]
    done = json_of(capsys, "export", place / "series", place / "out", *whole)["variables"]
    files = [place / "out" / file for file in ("50%25.parquet", "ads%2Fclicks.parquet", "users.parquet")]
    assert sorted((place / "out").iterdir()) == files
    assert [(each["variable"], each["rows"], each["out"]) for each in done] == [
        (name, 5, str(file)) for name, file in zip(NAMES, files, strict=True)
    ]
    for file in files:
        import_table(file, place / "copy")
    with (
        kvemb.open(place / "copy", read_only=True) as copy,
        kvemb.open(place / "series" / "00000002", read_only=True) as old,
    ):
        assert sorted(copy.variables) == sorted(old.variables) == list(NAMES)
        for name in NAMES:
            for one, other in zip(copy.variables[name].export(), old.variables[name].export(), strict=True):
                assert one.tolist() == other.tolist()


def test_what_changed_and_parts_are_of_all_tables(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, since = place / "series" / "00000002", ["--since", str(place / "series" / "00000001")]
    assert run(["export", str(newest), str(place / "new"), "--all", "--format", "csv", *since]) == 0
    assert str(place / "new" / "users.removed.npy") in capsys.readouterr().out
    assert np.load(place / "new" / "users.removed.npy").tolist() == [0]
    assert (place / "new" / "users.csv").read_text().splitlines()[1:] == ["9,7,7"]
    assert (place / "new" / "50%25.csv").read_text().splitlines()[1:] == []
    assert run(["export", str(newest), str(place / "parts"), "--all", "--format", "csv", "--partitions", "2"]) == 0
    assert {path.name for path in (place / "parts").iterdir()} == {"50%25.csv", "ads%2Fclicks.csv", "users.csv"}
    assert all(any(path.iterdir()) for path in (place / "parts").iterdir())


def test_if_one_table_cannot_be_written_there_is_no_output(place: Path) -> None:
    with kvemb.open(place / "store", memory_budget="4MiB") as store:
        store.get_variable("words", dim=1, key_dtype="string").upsert(["a"], [[1]])
    assert run(["export", str(place / "store"), str(place / "out"), "--all", "--format", "npy"]) == 1
    assert sorted(path.name for path in place.iterdir()) == ["series", "store"]


def test_a_store_that_goes_on_is_exported_as_of_one_moment(place: Path) -> None:
    with kvemb.open(place / "store", memory_budget="4MiB") as store:
        before = store.point

        def changed_meanwhile(_: int, __: int) -> None:
            store.variables["users"].upsert([100 + store.point], [[1, 1]])
            store.flush()

        done = export_all(place / "store", place / "out", format="csv", progress=changed_meanwhile)
        assert store.point >= before + 3
    assert [each.rows for each in done] == [5, 5, 5]
