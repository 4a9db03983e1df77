"""The disk space that marks keep from being freed."""

from __future__ import annotations

from deltas import fill

from kvemb import bulk
from kvemb.durability import manifest
from kvemb.durability.marks.space import marks_with_bytes


def test_a_mark_keeps_the_files_that_no_other_point_has(store, tmp_path):
    fill(store, range(1000), 1)
    first = store.mark("first", block=True)
    assert marks_with_bytes(tmp_path / "store", manifest.read(first.path)) == [(first, 0)], "it is the store's point"
    fill(store, range(1000), 2)
    bulk.compact(store)
    current = manifest.read(tmp_path / "store" / "points" / f"{store.point:06d}")
    mine = {each.sha256 for each in current.files.values()}
    alone = sum(each.bytes for each in manifest.read(first.path).files.values() if each.sha256 not in mine)
    assert alone > 10_000
    assert marks_with_bytes(tmp_path / "store", current) == [(first, alone)]


def test_what_two_marks_share_is_freed_by_neither(store, tmp_path):
    fill(store, range(1000), 1)
    first, second = store.mark(block=True), store.mark(block=True)
    fill(store, range(10), 2)
    third = store.mark("third", block=True)
    fill(store, range(1000), 3)
    bulk.compact(store)
    current = manifest.read(tmp_path / "store" / "points" / f"{store.point:06d}")
    kept = marks_with_bytes(tmp_path / "store", current)
    assert [mark for mark, _ in kept] == [first, second, third]
    (_, one), (_, two), (_, three) = kept
    assert one == two == 0, "they are of one point"
    tables = {each.sha256 for name, each in manifest.read(first.path).files.items() if name.endswith(".sst")}
    whole = sum(each.bytes for each in manifest.read(third.path).files.values() if each.sha256 not in tables)
    assert 0 < three <= whole, "the file of 1,000 rows is theirs, too"
