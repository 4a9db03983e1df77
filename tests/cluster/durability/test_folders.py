"""Folders of shards; tests/durability/test_scratch.py has what happens to those of killed processes."""

from __future__ import annotations

from contextlib import ExitStack

from kvemb.cluster.durability.folders import new_folder


def test_a_root_is_made_and_what_is_in_it_is_deleted_with_the_stack(tmp_path):
    with ExitStack() as undo:
        folder = new_folder(tmp_path / "new" / "root", "kvemb-", undo)
        (folder / "rows").touch()
    assert list((tmp_path / "new" / "root").iterdir()) == []
