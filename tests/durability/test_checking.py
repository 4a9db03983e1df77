"""The findings of verification: each kind of damage, one line."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

import kvemb
from kvemb.durability import inventory, manifest
from kvemb.durability.checking import checkpoint_findings, table_bytes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkpoint of `users`, three rows, and `items`, two, with key files."""
    place = tmp_path_factory.mktemp("made")
    with kvemb.open(place / "store", memory_budget="4MiB") as store:
        store.get_variable("users", dim=2).upsert([1, 2, 3], np.ones((3, 2), np.float32))
        store.get_variable("items", dim=2).upsert([7, 8], np.ones((2, 2), np.float32))
        store.checkpoint(place / "checkpoint")
    return place / "checkpoint"


@pytest.fixture
def checkpoint(made, tmp_path):
    """A copy, which may be damaged."""
    return shutil.copytree(made, tmp_path / "checkpoint")


def findings(path, described=None, *, deep=True):
    return list(checkpoint_findings(path, described or manifest.read(path), deep=deep))


@pytest.mark.parametrize("deep", [True, False])
def test_nothing_is_wrong_with_a_sound_one_and_progress_ends_at_its_total(made, deep):
    told: list[tuple[int, int]] = []
    described = manifest.read(made)
    assert list(checkpoint_findings(made, described, deep=deep, progress=lambda *at: told.append(at))) == []
    total = sum(entry.bytes for entry in described.files.values())
    total += table_bytes(described) if deep else 0
    assert told[-1] == (total, total)
    assert told == sorted(told)


def test_the_bytes_of_all_records(made):
    assert table_bytes(manifest.read(made)) == 5 * (17 + 2 * 4)


@pytest.mark.parametrize("name", ["rows/000099.sst", "changes/000099.keys", "hot/000099-000.keys"])
def test_a_file_that_is_not_in_the_manifest_is_told(checkpoint, name):
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_bytes(b"")
    assert findings(checkpoint, deep=False) == [f"{checkpoint}/{name} is not in manifest.json"]


def test_a_count_that_is_wrong_is_told(made):
    described = manifest.read(made)
    users = replace(described.variables["users"], rows=4)
    wrong = replace(described, variables={**described.variables, "users": users})
    assert findings(made, wrong, deep=False) == []
    assert findings(made, wrong) == [f"{made}: variable 'users' has 3 rows and should have 4"]


def test_records_of_another_width_are_told_and_the_rest_is_read(made):
    described = manifest.read(made)
    variables = {name: replace(entry, dim=9, rows=99) for name, entry in described.variables.items()}
    variables["users"] = replace(described.variables["users"], rows=99)
    one, other = findings(made, replace(described, variables=variables))
    assert one.startswith(f"{made}: variable 'items' cannot be read after 0 rows: ")
    assert other == f"{made}: variable 'users' has 3 rows and should have 99"


def test_a_damaged_key_file_is_told_even_where_its_checksum_fits(checkpoint):
    described = manifest.read(checkpoint)
    name = min(described.named_files)
    damaged = bytearray((checkpoint / name).read_bytes())
    damaged[-1] ^= 1
    (checkpoint / name).unlink()
    (checkpoint / name).write_bytes(damaged)
    assert findings(checkpoint, deep=False) == []
    (by_checksum,) = findings(checkpoint)
    assert "its checksum differs from the manifest" in by_checksum
    (checkpoint / name).write_bytes(damaged)
    fitting = inventory.measure(checkpoint / name)
    (told,) = findings(checkpoint, replace(described, files={**described.files, name: fitting}))
    assert f"{checkpoint}/{name} is damaged" in told


def test_rows_of_damaged_files_are_not_read(checkpoint):
    (file,) = sorted(checkpoint.glob("rows/*.sst"))[:1]
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])
    assert findings(checkpoint) == [f"{file} is damaged: it has {len(data) - 1:,} bytes and should have {len(data):,}"]
