"""How cold databases are opened for each use, and the few calls that open none.

A manifest and the database beside it have the same variables, or whoever opens them says that they differ.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import hostile
import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of
from manifests import entry_of, manifest_of

import kvemb
from kvemb import registry
from kvemb.contracts import Family
from kvemb.durability import cold_databases, manifest
from kvemb.errors import ColdStoreError, Corruption, UnsupportedFormat
from kvemb.options import RocksDBCreator
from kvemb.tools.cli import run

SIZES = {"cache_bytes": 1 << 20}
CREATOR = RocksDBCreator(block_bytes=8192)
DESCRIBED = manifest_of(variables={"users": entry_of(creator=asdict(CREATOR))})


@pytest.fixture
def folder(tmp_path):
    """A database of `users`, with the rows 1 and 2, and `items`, empty."""
    database = cold_databases.to_write(tmp_path / "rows", manifest_of(), **SIZES)
    database.create("users", SCHEMA, CREATOR).write(rows_of([1, 2], 3.0))
    database.create("items", SCHEMA, RocksDBCreator())
    database.checkpoint(tmp_path / "copy")
    database.close()
    return tmp_path / "copy"


def rows(folder, described=DESCRIBED, opened=cold_databases.to_read):
    database = opened(folder, described)
    try:
        found, there = database.attach("users", SCHEMA).read(np.array([1, 2, 3]))
        assert there.sum() == len(found)
        return values_of(found)
    finally:
        database.close()


def test_families_are_named_without_opening(folder):
    assert sorted(cold_databases.families(folder)) == ["items", "users"]


@pytest.mark.parametrize("opened", [cold_databases.to_read, cold_databases.to_salvage])
def test_what_was_written_is_read(folder, opened):
    both = manifest_of(variables={"users": entry_of(), "items": entry_of()})
    assert rows(folder, both, opened) == {1: 3.0, 2: 3.0}


def test_a_copy_loses_variables_and_takes_in_files(folder, tmp_path):
    writer = cold_databases.to_sort_in(tmp_path / "sorting")
    writer.create("users", SCHEMA, CREATOR)
    file = writer.sorted_file(tmp_path / "000001.sst", SCHEMA, CREATOR)
    file.append(rows_of([2, 3], 9.0))
    file.finish()
    writer.close()
    cold_databases.amend(folder, drop=["items"], added=[("users", file)])
    assert cold_databases.families(folder) == ["users"]
    assert rows(folder) == {1: 3.0, 2: 9.0, 3: 9.0}


def test_reading_makes_no_database(tmp_path):
    with pytest.raises(ColdStoreError):
        cold_databases.to_read(tmp_path / "none", manifest_of())
    assert not (tmp_path / "none" / "CURRENT").exists()


USES = {
    "to_write": (lambda path: cold_databases.to_write(path, DESCRIBED, **SIZES), {"read_only": False}),
    "to_read": (lambda path: cold_databases.to_read(path, DESCRIBED), {"read_only": True}),
    "to_salvage": (lambda path: cold_databases.to_salvage(path, DESCRIBED), {"read_only": True, "salvaging": True}),
    "to_repair_into": (cold_databases.to_repair_into, {"read_only": False}),
    "to_sort_in": (cold_databases.to_sort_in, {"read_only": False, "compacting": False}),
}


@pytest.mark.parametrize("use", USES)
def test_each_use_has_its_own_options(monkeypatch, tmp_path, use):
    backend = Mock()
    backend.families.return_value = ["users"]
    monkeypatch.setattr(registry, "cold_backend", lambda name: backend)
    (tmp_path / "MANIFEST-000001").touch()
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    opened, expected = USES[use]
    opened(tmp_path)
    ((path, families), options) = backend.call_args
    assert path == tmp_path
    assert families == ({} if use in ("to_repair_into", "to_sort_in") else {"users": Family(CREATOR, 0, 33)})
    ways = ("read_only", "salvaging", "compacting")
    assert {name: options[name] for name in ways if name in options} == expected


def test_a_creator_that_is_not_known_is_of_another_version():
    described = manifest_of(variables={"users": entry_of(creator={**asdict(CREATOR), "tiers": 3})})
    with pytest.raises(UnsupportedFormat, match="tiers"):
        cold_databases.creators_of(described)


def test_a_store_in_memory_is_empty_and_alone():
    cold_databases.in_memory(SCHEMA).write(rows_of([1]))
    assert list(cold_databases.in_memory(SCHEMA).scan(9)) == []


BUDGET = "4MiB"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """earlier and checkpoint: two checkpoints of a closed store of two variables."""
    place = tmp_path_factory.mktemp("made")
    with kvemb.open(place / "store", memory_budget=BUDGET) as store:
        for name in ("items", "users"):
            store.get_variable(name, dim=2).upsert(np.arange(50), np.ones((50, 2), np.float32))
        store.checkpoint(place / "earlier")
        store.variables["users"].remove([1])
        store.checkpoint(place / "checkpoint")
    return place


def removed(variables: dict[str, Any]) -> None:
    del variables["users"]


def renamed(variables: dict[str, Any]) -> None:
    variables["others"] = variables.pop("users")


def added(variables: dict[str, Any]) -> None:
    variables["others"] = dict(variables["users"])


BENT = {
    removed: "the variable 'users' is in rows/ but not in manifest.json",
    renamed: "the variable 'others' is in manifest.json but not in rows/, and 1 more variables differ",
    added: "the variable 'others' is in manifest.json but not in rows/",
}


def bend(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads((directory / manifest.NAME).read_text())
    change(data["variables"])
    (directory / manifest.NAME).write_text(hostile.signed(data))


@pytest.mark.parametrize("change", BENT, ids=lambda change: change.__name__)
def test_a_checkpoint_of_other_variables_than_its_manifest_says(made, tmp_path, capsys, change):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made / "checkpoint", checkpoint)
    bend(checkpoint, change)
    line = f"{checkpoint / 'rows'} is damaged: {BENT[change]}"
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: kvemb.open(checkpoint, read_only=True, memory_budget=BUDGET).close(),
        "restore": lambda: kvemb.restore(checkpoint, tmp_path / "restored", memory_budget=BUDGET).close(),
        "repair": lambda: kvemb.repair(checkpoint, tmp_path / "repaired"),
        "changes": lambda: list(kvemb.Checkpoint(checkpoint).changes(made / "earlier")),
    }
    for name, way in ways.items():
        with pytest.raises(Corruption) as told:
            way()
        assert str(told.value).startswith(line), name
    assert [finding.partition(";")[0] for finding in kvemb.verify(checkpoint, deep=True).findings] == [line]
    assert run(["restore", str(checkpoint), str(tmp_path / "typed")]) == 1
    assert line in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
