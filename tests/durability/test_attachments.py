"""Files and values saved beside the rows: restored, checked, and saved with the rows or not at all."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pytest

import kvemb
from kvemb.durability.attachments import MAX_EXTRA_CHARACTERS
from kvemb.errors import Corruption
from kvemb.tools.cli import run


@pytest.fixture
def users(store):
    users = store.get_variable("users", dim=2)
    users.upsert([1, 2], np.ones((2, 2), np.float32))
    return users


def test_files_and_values_come_back(store, users, tmp_path):
    (tmp_path / "given").write_bytes(b"from a path")
    given = {
        "bytes": b"abc",
        "array.npy": memoryview(b"view"),
        "path.bin": tmp_path / "given",
        "text": str(tmp_path / "given"),
        "written.pt": lambda file: file.write(b"written"),
        "empty": b"",
    }
    extra = {"step": 7, "loss": 0.1, "nested": [{"a": None}], "ü": "\ud800"}
    checkpoint = store.checkpoint(tmp_path / "checkpoint", files=given, extra=extra)
    found = {name: path.read_bytes() for name, path in checkpoint.files.items()}
    assert found == {
        "bytes": b"abc",
        "array.npy": b"view",
        "path.bin": b"from a path",
        "text": b"from a path",
        "written.pt": b"written",
        "empty": b"",
    }
    assert (checkpoint.extra, kvemb.Checkpoint(tmp_path / "checkpoint").extra) == (extra, extra)
    assert kvemb.verify(checkpoint, deep=True).findings == []
    checkpoint.extra["step"] = 8
    assert checkpoint.extra == extra
    with pytest.raises(KeyError, match=r"has no file 'model'; it has array\.npy, bytes"):
        checkpoint.files["model"]
    assert "written.pt" in repr(checkpoint.files)


def test_a_later_checkpoint_and_point_have_none_of_it(store, users, tmp_path):
    store.checkpoint(tmp_path / "1", files={"model": b"1"}, extra={"step": 1})
    point = kvemb.Checkpoint.at(store.path)
    assert (point.files["model"].read_bytes(), point.extra) == (b"1", {"step": 1})
    second = store.checkpoint(tmp_path / "2", extra={"step": 2})
    assert (dict(second.files), second.extra) == ({}, {"step": 2})
    users.upsert([7], np.ones((1, users.dim), np.float32))
    store.flush()
    assert (dict(kvemb.Checkpoint.at(store.path).files), kvemb.Checkpoint.at(store.path).extra) == ({}, {})
    assert (kvemb.Checkpoint(tmp_path / "1").files["model"].read_bytes(), [*second.files]) == (b"1", [])


def test_a_restored_store_has_it_until_its_next_point(store, users, tmp_path):
    first = store.checkpoint(tmp_path / "1", files={"model": b"1"}, extra={"step": 1})
    with kvemb.restore(first, tmp_path / "restored", memory_budget="4MiB") as restored:
        point = kvemb.Checkpoint.at(restored.path)
        assert (point.files["model"].read_bytes(), point.extra) == (b"1", {"step": 1})
        assert os.path.samefile(point.files["model"], first.files["model"])
        restored.check(deep=True)
        restored.flush()
        assert [*kvemb.Checkpoint.at(restored.path).files] == ["model"], "nothing changed"
        restored.variables["users"].upsert([7], np.ones((1, users.dim), np.float32))
        restored.flush()
        assert [*kvemb.Checkpoint.at(restored.path).files] == []


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"../model": b""}, ValueError, r"without folders and .*, got '\.\./model'"),
        *(({name: b""}, ValueError, "1 to 200") for name in ("a/b", ".hidden", "", "x" * 201, "a\n", "ü", 3)),
        ({"Model": b"", "model": b""}, ValueError, "'Model' and 'model' are the same name"),
        ({"model": 3}, TypeError, r"files\['model'\] must be bytes, a path, or a function"),
        ({"model": None}, TypeError, "must be bytes"),
        (["model"], TypeError, "files must be a dict"),
        ({"model": "missing"}, FileNotFoundError, "missing"),
    ],
    ids=repr,
)
def test_bad_files_are_refused_and_nothing_is_written(store, users, tmp_path, files, error, message):
    before = sorted(path.name for path in (store.path / "points").iterdir())
    with pytest.raises(error, match=message):
        store.checkpoint(tmp_path / "checkpoint", files=files)
    assert not (tmp_path / "checkpoint").exists()
    assert sorted(path.name for path in (store.path / "points").iterdir()) == before


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ([1], TypeError),
        ({1: 2}, TypeError),
        ({"a": (1, 2)}, TypeError),
        ({"a": np.float32(1)}, TypeError),
        ({"a": float("nan")}, TypeError),
        ({"a": b"x"}, TypeError),
        ({"a": "x" * MAX_EXTRA_CHARACTERS}, ValueError),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_values_that_would_not_come_back_are_refused(store, users, tmp_path, extra, error):
    with pytest.raises(error, match="extra"):
        store.checkpoint(tmp_path / "checkpoint", extra=extra)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("durability", ["checkpoint", "write"])
def test_a_writer_that_fails_leaves_nothing_and_the_store_sound(open_store, tmp_path, durability):
    store = open_store(tmp_path / "store2", durability=durability)
    users = store.get_variable("users", dim=1)
    users.upsert([1], [[1.0]])

    def fail(file):
        file.write(b"half")
        raise RuntimeError("no room on the GPU")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no room on the GPU"):
            store.checkpoint(tmp_path / "checkpoint", files={"a": b"1", "model": fail})
    assert [path.name for path in tmp_path.iterdir()] == ["store2"]
    users.upsert([2], [[2.0]])
    assert store.checkpoint(tmp_path / "checkpoint", files={"model": b"1"}).variables["users"].rows == 2
    assert len(list((store.path / "points").iterdir())) == 1


def test_a_writer_may_read_the_store_but_not_checkpoint_it(store, users, tmp_path):
    checkpoint = store.checkpoint(
        tmp_path / "1", files={"rows": lambda file: file.write(users.lookup([1, 2]).tobytes())}
    )
    assert np.frombuffer(checkpoint.files["rows"].read_bytes(), np.float32).tolist() == [1.0] * 4
    for call in (store.flush, lambda: store.checkpoint(tmp_path / "3")):
        with pytest.raises(ValueError, match="must not flush, checkpoint or close"):
            store.checkpoint(tmp_path / "2", files={"model": lambda file, call=call: call()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "store"]


def test_files_are_those_of_the_call_whatever_changes_later(store, users, tmp_path):
    weights, source, threads = bytearray(b"before"), tmp_path / "source", []
    source.write_bytes(b"before")

    def write(file):
        threads.append(threading.current_thread())
        file.write(weights)

    given = {"bytes": weights, "path": source, "function": write}
    pending = store.checkpoint(tmp_path / "checkpoint", block=False, files=given)
    weights[:] = b"after!"
    source.write_bytes(b"after!")
    assert {path.read_bytes() for path in pending.result().files.values()} == {b"before"}
    assert threads == [threading.current_thread()]


def test_damage_is_named_when_a_file_is_asked_for(store, users, tmp_path):
    checkpoint = store.checkpoint(tmp_path / "checkpoint", files={"model.keys": b"sound", "other": b"1"})
    path = tmp_path / "checkpoint" / "files" / "model.keys"
    path.unlink()
    path.write_bytes(b"hurt!")
    with pytest.raises(Corruption, match=r"files/model\.keys is damaged"):
        checkpoint.files["model.keys"]
    assert checkpoint.files["other"].read_bytes() == b"1"
    assert kvemb.verify(checkpoint).findings == [], "its size is right"
    (told,) = kvemb.verify(checkpoint, deep=True).findings
    assert told.startswith(f"{path} is damaged")
    path.unlink()
    with pytest.raises(Corruption, match=r"files/model\.keys cannot be read"):
        checkpoint.files["model.keys"]
    assert not kvemb.verify(checkpoint)
    (tmp_path / "checkpoint" / "files" / "strange").touch()
    assert any("files/strange is not in manifest.json" in line for line in kvemb.verify(checkpoint).findings)


def test_info_shows_them(store, users, tmp_path, capsys):
    path = store.checkpoint(tmp_path / "checkpoint", files={"model.pt": b"dense 4"}, extra={"step": 4}).path
    assert run(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "file model.pt" in shown
    assert '{"step": 4}' in shown
    assert run(["info", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["attached"], found["extra"]) == ({"model.pt": 7}, {"step": 4})
