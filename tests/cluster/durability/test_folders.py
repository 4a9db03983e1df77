"""Folders of shards: locked while they are used, and deleted when their owner was killed."""

from __future__ import annotations

import os
import time

from kvemb.cluster.durability.folders import SETTLED_SECONDS, delete, new_folder


def aged(folder):
    past = time.time() - 2 * SETTLED_SECONDS
    os.utime(folder / "LOCK", (past, past))
    return folder


def test_what_a_killed_process_left_is_deleted_and_what_is_used_stays(tmp_path):
    used, lock = new_folder(tmp_path, "kvemb-")
    left, ended = new_folder(tmp_path, "kvemb-")
    (left / "rows").touch()
    ended.close()
    fresh, young = new_folder(tmp_path, "kvemb-")
    young.close()
    (tmp_path / "kvemb-file").touch()
    (tmp_path / "kvemb-bare").mkdir()
    for folder in (used, left):
        aged(folder)
    made, own = new_folder(tmp_path / "", "kvemb-")
    assert not left.exists()
    for stays in (used, fresh, made, tmp_path / "kvemb-file", tmp_path / "kvemb-bare"):
        assert stays.exists()
    delete(made, own)
    delete(used, lock)
    assert not made.exists()
    assert not used.exists()


def test_a_root_is_made_and_other_prefixes_stay(tmp_path):
    other, lock = new_folder(tmp_path / "new", "other-")
    lock.close()
    aged(other)
    folder, own = new_folder(tmp_path / "new", "kvemb-")
    assert sorted((tmp_path / "new").iterdir()) == sorted([folder, other])
    delete(folder, own)
