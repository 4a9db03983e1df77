"""Checks and repairs of what was pushed: each damaged link is named with the numbers that need it."""

from __future__ import annotations

import pytest
from pushed import ROWS, chain_of, contents, fill

import kvemb
from kvemb.errors import CheckpointNotFound, Corruption

fsspec = pytest.importorskip("fsspec")


@pytest.mark.parametrize("local", [True, False])
def test_each_damaged_file_is_named_with_the_numbers_that_need_it(store, manager, tmp_path, local):
    url = str(tmp_path / "remote") if local else f"memory://{tmp_path.name}"
    chain = chain_of(manager, store, url, 4)
    for deep in (False, True):
        told: list[tuple[int, int]] = []
        found = kvemb.verify(url, deep=deep, progress=lambda *seen, told=told: told.append(seen))
        assert (bool(found), found.findings, found.rows) == (True, [], {"table": ROWS})
        needed = {sha256: entry for each in chain for sha256, entry in each.files.items()}
        assert (found.files, found.nbytes) == (len(needed), sum(entry.bytes for entry in needed.values()))
        assert bool(told) == deep
        assert not told or told[-1] == (found.nbytes, found.nbytes)
    files, root = fsspec.core.url_to_fs(url)
    delta = chain[2].deltas[1]
    path = f"{root}/files/{delta.sha256[:2]}/{delta.sha256}"
    sound = files.cat_file(path)
    files.pipe_file(path, sound[:-1] + bytes([sound[-1] ^ 1]))
    assert kvemb.verify(url)
    found = kvemb.verify(url, deep=True)
    assert len(found.findings) == 1
    assert "the delta of checkpoint 00000003, is damaged" in found.findings[0]
    assert "needed by 00000003, 00000004" in found.findings[0]
    assert "these are undamaged: 1, 2" in found.notes[0]
    files.pipe_file(path, sound[:-1])
    assert "has" in kvemb.verify(url).findings[0]
    files.rm_file(path)
    assert "is missing" in kvemb.verify(url).findings[0]
    # The newest that lacks nothing becomes a store.
    done = kvemb.repair(url, tmp_path / "repaired")
    assert (done.source, len(done.damages)) == (f"checkpoint 2 at {url}", 1)
    with kvemb.open(tmp_path / "repaired", memory_budget="4MiB") as repaired:
        saved = repaired.checkpoint(tmp_path / "saved")
    assert contents(saved)["rows"] == contents(kvemb.Checkpoint(manager.path(2)))["rows"]
    # A push mends it.
    for number in (3, 4):
        manager.push(url, number=number, verify=True)
    assert kvemb.verify(url, deep=True)


def test_a_number_that_cannot_be_read_is_a_finding(store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    chain_of(manager, store, url, 2)
    files, root = fsspec.core.url_to_fs(url)
    for number in (2, 1):
        path = f"{root}/checkpoints/{number:08d}.json"
        files.pipe_file(path, files.cat_file(path)[:-5])
        found = kvemb.verify(url)
        assert any(f"0000000{number}.json is damaged" in line for line in found.findings)
    with pytest.raises(Corruption, match=r"every checkpoint at .* is damaged"):
        kvemb.repair(url, tmp_path / "repaired")
    assert not (tmp_path / "repaired").exists()


def test_where_nothing_was_pushed_there_is_nothing_to_check(store, tmp_path):
    fill(store, [1], 1)
    with pytest.raises(CheckpointNotFound, match="there is no checkpoint at memory://"):
        kvemb.verify(f"memory://{tmp_path.name}-nothing")
