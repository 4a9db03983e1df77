"""`kvemb verify`, `repair`, `push` and `pull` as their users run them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from told import json_of

import kvemb
from kvemb.tools.cli import run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A series of two checkpoints."""
    with (
        kvemb.open(tmp_path / "store", memory_budget="8MiB") as store,
        kvemb.CheckpointManager(tmp_path / "series") as manager,
    ):
        table = store.get_variable("table", dim=4)
        for start in (0, 5000):
            table.upsert(np.arange(start, start + 5000), np.ones((5000, 4), np.float32))
            manager.save(store)
    return tmp_path / "series"


def damage(checkpoint: Path) -> Path:
    """Flip a bit in the middle of the largest table file, in a copy of its own."""
    path = max(checkpoint.glob("rows/*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.unlink()
    path.write_bytes(data)
    return path


def test_a_sound_checkpoint_and_a_sound_store(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(root / "00000002"), "--deep"]) == 0
    out = capsys.readouterr().out
    assert "sound: every byte was read" in out
    assert "10,000 rows" in out
    summary = json_of(capsys, "verify", root.parent / "store")
    assert (summary["sound"], summary["findings"], summary["rows"]) == (True, [], {"table": 10_000})


def test_damage_is_named_and_gives_exit_code_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(root / "00000002")
    assert run(["verify", str(root / "00000002")]) == 0
    assert "--deep reads them" in capsys.readouterr().out
    assert run(["verify", str(root / "00000002"), "--deep", "--quiet"]) == 1
    assert f"{path} is damaged: its checksum differs from the manifest" in capsys.readouterr().out
    assert json_of(capsys, "verify", root / "00000002", "--deep", code=1)["sound"] is False


def test_repair_tells_what_is_lost(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(root / "00000002")
    summary = json_of(capsys, "repair", root / "00000002", tmp_path / "out", code=1)
    saved = summary["variables"]["table"]
    assert saved["rows"] + saved["lost"] == 10_000
    assert 0 < saved["lost"] < 500
    with kvemb.open(tmp_path / "out", read_only=True) as store:
        assert store.variables["table"].size() == saved["rows"]
    assert run(["repair", str(root / "00000002"), str(tmp_path / "again")]) == 1
    out = capsys.readouterr().out
    assert str(path) in out
    assert f"{saved['rows']:,} rows saved, {saved['lost']:,} lost" in out
    (first, last), *_ = saved["gaps"]
    assert f"keys {first} to {last} left out" in out
    assert run(["repair", str(root / "00000002"), str(tmp_path / "out")]) == 1
    assert "name a new directory to repair to" in capsys.readouterr().err


def test_a_series_goes_and_comes_back(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fsspec")
    url = str(tmp_path / "remote")
    assert json_of(capsys, "push", root, url, "--number", "1")["shared"] == 0
    assert run(["push", str(root), url]) == 0
    assert "there already" in capsys.readouterr().out
    shutil.rmtree(root)
    assert json_of(capsys, "pull", url, root)["rows"] == 10_000
    assert json_of(capsys, "pull", url, root, "--number", "1")["path"] == str(root / "00000001")
    assert json_of(capsys, "pull", url, root, "--number", "1")["was_here"] is True
    assert run(["pull", url, str(root)]) == 0
    assert "was here already" in capsys.readouterr().out
    assert run(["verify", str(root / "00000001"), "--deep", "--quiet"]) == 0
    capsys.readouterr()


def test_of_a_series_all_checkpoints_are_checked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json_of(capsys, "verify", root, "--deep")
    entries = [each for path in root.glob("0*") for each in kvemb.Checkpoint(path).inventory.values()]
    known = {entry.sha256: entry.bytes for entry in entries}
    assert (whole["rows"], whole["files"], whole["nbytes"]) == ({"table": 10_000}, len(known), sum(known.values()))
    damaged = root / "00000001" / "rows" / "CURRENT"
    damaged.unlink()
    assert run(["verify", str(root)]) == 1
    out = capsys.readouterr().out
    assert f"{damaged} is missing" in out
    assert f"of the 2 checkpoints at {root}, these are undamaged: 2" in out
    assert run(["verify", str(root / "00000002")]) == 0
    capsys.readouterr()
    for name in ("00000001", "00000002"):
        (root / name / "manifest.json").write_text("{}")
    told = json_of(capsys, "verify", root, code=1)
    assert [line.split(" is damaged")[0] for line in told["findings"]] == [
        str(root / name / "manifest.json") for name in ("00000001", "00000002")
    ]
    assert told["notes"] == [f"of the 2 checkpoints at {root}, these are undamaged: none"]
