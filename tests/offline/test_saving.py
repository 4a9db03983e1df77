"""Saving with files: a series keeps, pushes, pulls and verifies them with the rows, as a whole and as deltas."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from versions import fill

import kvemb
from kvemb.errors import Corruption
from kvemb.tools.cli import run


def saved(manager, store, version: int) -> kvemb.Checkpoint:
    fill(store, version, np.arange(3000) if version == 0 else [version])
    return manager.save(store, files={"model.pt": b"dense %d" % version, "same": b"same"}, extra={"step": version})


def told(checkpoint: kvemb.Checkpoint) -> tuple[dict[str, bytes], dict[str, object]]:
    return {name: path.read_bytes() for name, path in checkpoint.files.items()}, checkpoint.extra


def expected(version: int) -> tuple[dict[str, bytes], dict[str, object]]:
    return {"model.pt": b"dense %d" % version, "same": b"same"}, {"step": version}


def test_pushed_and_pulled_as_a_base_and_as_deltas(store, manager, place, tmp_path):
    url, options = place
    for version in range(3):
        saved(manager, store, version)
        sent = manager.push(url, options=options)
        assert (sent.number, sent.deltas) == (version + 1, version), "the first whole, then deltas"
    assert kvemb.verify(url, options=options, deep=True).findings == []
    for have in ([1], []):
        with kvemb.CheckpointManager(tmp_path / f"pulled{have}") as other:
            for number in (*have, 3):
                assert told(other.pull(url, number=number, options=options)) == expected(number - 1)
                assert kvemb.verify(other.path(number), deep=True).findings == []


def test_what_is_damaged_at_the_url_is_named(store, manager, tmp_path):
    saved(manager, store, 0)
    manager.push(tmp_path / "remote")
    sha256 = manager.latest().inventory["files/model.pt"].sha256
    (tmp_path / "remote" / "files" / sha256[:2] / sha256).write_bytes(b"dense X")
    with (
        kvemb.CheckpointManager(tmp_path / "pulled") as other,
        pytest.raises(Corruption, match=r"files/model\.pt of checkpoint 00000001"),
    ):
        other.pull(tmp_path / "remote")
    assert not kvemb.verify(str(tmp_path / "remote"), deep=True)


def test_when_one_is_due_its_files_go_with_it(store, tmp_path):
    written = []
    with kvemb.CheckpointManager(tmp_path / "series", every=1e6) as manager:
        for _ in range(3):
            manager.save_if_due(store, files={"model": lambda file: written.append(file.write(b"1"))}, extra={"n": 1})
    assert (len(written), told(manager.latest())) == (1, ({"model": b"1"}, {"n": 1})), "written only when due"


def test_old_ones_are_deleted_with_their_files(store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", keep=1) as manager:
        for version in range(3):
            saved(manager, store, version)
        assert (manager.numbers(), told(manager.latest())) == ([3], expected(2))


def test_a_checkpoint_is_whole_while_it_is_written(store, manager):
    saved(manager, store, 0)
    asked = threading.Event()

    def write(file):
        file.write(b"later")
        assert told(manager.latest()) == expected(0)
        asked.set()

    fill(store, 1, [1])
    pending = manager.save(store, files={"model": write}, block=False)
    assert asked.is_set()
    assert told(pending.result()) == ({"model": b"later"}, {})


def test_info_shows_them(store, manager, capsys):
    path = saved(manager, store, 4).path
    assert run(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "file model.pt" in shown
    assert '{"step": 4}' in shown
    assert run(["info", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["attached"], found["extra"]) == ({"model.pt": 7, "same": 4}, {"step": 4})
