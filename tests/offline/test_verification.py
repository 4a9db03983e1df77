"""The results of verify() for a checkpoint or a store, what it refuses, and which processes it locks out."""

from __future__ import annotations

import shutil

import pytest
from damage import BUDGET

import kvemb
from kvemb.durability import layout, manifest
from kvemb.errors import Locked, StoreNotFound


def test_verify_refuses_what_it_cannot_verify(open_store, tmp_path):
    with pytest.raises(StoreNotFound, match="neither a checkpoint nor a store"):
        kvemb.verify(tmp_path)
    store = open_store(tmp_path / "store")
    with pytest.raises(StoreNotFound, match=f"neither a checkpoint nor a store; it contains {store.path}$"):
        kvemb.verify(tmp_path)
    with pytest.raises(Locked, match="close it there"):
        kvemb.verify(store.path)
    with pytest.raises(Locked, match="close it there"):
        kvemb.repair(store.path, tmp_path / "out")
    store.close()
    assert kvemb.verify(store.path)


def test_nobody_opens_a_store_that_is_being_verified(places, tmp_path):
    shutil.copytree(places / "closed", tmp_path / "store")
    met = []

    def while_reading(done: int, total: int) -> None:
        with pytest.raises(Locked):
            kvemb.open(tmp_path / "store")
        met.append(done)

    assert kvemb.verify(tmp_path / "store", progress=while_reading)
    assert met
    kvemb.open(tmp_path / "store", memory_budget=BUDGET).close()


def test_a_store_that_was_not_closed_is_noted(places):
    found = kvemb.verify(places / "crashed", deep=True)
    assert found.findings == []
    assert "was not closed: opening it recovers its durable point of" in found.notes[0]
    assert found.notes[0].endswith("and 200 rows written later, from the log")


@pytest.mark.parametrize(
    ("which", "name"),
    [("checkpoint", manifest.NAME), ("closed", layout.CURRENT), ("closed", f"points/*/{manifest.NAME}")],
)
def test_a_name_that_is_missing_is_told(places, tmp_path, which, name):
    shutil.copytree(places / which, tmp_path / "copy")
    (path,) = (tmp_path / "copy").glob(name)
    path.unlink()
    found = kvemb.verify(tmp_path / "copy")
    assert (bool(found), found.findings) == (False, [f"{path} is missing"])


def test_what_was_verified_is_counted(places):
    found = kvemb.verify(places / "parent")
    files = [path for path in (places / "parent").rglob("*") if path.is_file() and path.name != manifest.NAME]
    assert (bool(found), found.rows, found.path, found.deep) == (True, {"table": 50}, places / "parent", False)
    assert (found.files, found.nbytes) == (len(files), sum(path.stat().st_size for path in files))


def test_what_marks_keep_is_verified_too(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        table = store.get_variable("table", dim=2)
        table.upsert([1], [[1, 1]])
        mark = store.mark(block=True)
        table.upsert([1], [[2, 2]])
    sound = kvemb.verify(store.path, deep=True)
    assert sound
    assert sound.files > len(kvemb.Checkpoint.at(store.path).inventory)
    (file,) = (mark.path / "rows").glob("OPTIONS*")
    file.unlink()
    assert kvemb.verify(store.path).findings == [f"{file} is missing"]
    (named,) = (store.path / "marks").iterdir()
    named.write_text("")
    (finding,) = kvemb.verify(store.path).findings
    assert f"{named} is damaged" in finding
