"""Segments of the log: which must exist, and how torn or damaged ones are read."""

from __future__ import annotations

import pytest
from manifests import log_entry, segment

from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.journal.segment_files import CONTINUED, ENTRY, HEAD, NOTE, NUMBER, delete_before, read, segments

HEAD_BYTES = HEAD.size + NOTE.size


@pytest.fixture
def folder(tmp_path):
    """Segments 7, 9 and 10, and files that are none."""
    for name in ("000007.log", "000009.log", "000010.log", "7.log", "x.log", "000008.txt"):
        (tmp_path / name).touch()
    return tmp_path


def named(paths):
    return [path.name for path in paths]


def test_segments_are_those_from_a_point_on_in_order(folder):
    assert named(segments(folder, 9, begun=True)) == ["000009.log", "000010.log"]
    assert segments(folder, 11, begun=False) == []
    assert segments(folder / "none", 1, begun=False) == []


@pytest.mark.parametrize(("number", "begun"), [(8, True), (8, False), (11, True)])
def test_a_first_segment_that_must_be_there_is_missed(folder, number, begun):
    with pytest.raises(Corruption, match=rf"{folder}/0000{number:02d}\.log is missing"):
        segments(folder, number, begun=begun)


def test_segments_before_a_point_are_deleted_and_nothing_else(folder):
    delete_before(folder, 9)
    assert sorted(named(folder.iterdir())) == ["000008.txt", "000009.log", "000010.log", "7.log", "x.log"]


def numbers(*paths, begun=True):
    return [entry.number for entry in read(list(paths), begun=begun)]


def continued(number, following, synced=0):
    return log_entry(NUMBER.pack(following), CONTINUED, b"", number=number, synced=synced)


def test_consecutive_segments_are_read_as_one_log(tmp_path):
    first = segment(tmp_path / "000007.log", log_entry(b"ab", rows=3, step=9), continued(2, 9))
    second = segment(tmp_path / "000009.log", log_entry(number=3), before=2)
    (entry, later) = read([first, second], begun=True)
    assert (entry.variable, entry.rows, entry.step, entry.payload) == ("table", 3, 9, b"ab")
    assert (entry.number, later.number) == (1, 3)
    assert numbers(second) == [3], "a log may begin anywhere"


@pytest.mark.parametrize("following", [6, 7])
def test_an_entry_that_names_an_earlier_segment_or_its_own_is_damage(tmp_path, following):
    paths = [segment(tmp_path / "000007.log", continued(1, following)), segment(tmp_path / "000009.log", before=1)]
    with pytest.raises(Corruption, match=rf"00000{following}\.log is missing"):
        numbers(*paths)


@pytest.mark.parametrize("following", [[], ["000010.log"]])
def test_the_segment_that_the_last_entry_names_must_follow(tmp_path, following):
    first = segment(tmp_path / "000007.log", log_entry(), continued(2, 9))
    others = [segment(tmp_path / name, before=2) for name in following]
    with pytest.raises(Corruption, match=rf"{tmp_path}/000009\.log is missing"):
        numbers(first, *others)


@pytest.mark.parametrize("lost", range(1, len(log_entry(b"abc")) + 1, 6))
def test_a_torn_end_is_dropped_unless_it_was_synced(tmp_path, lost):
    whole = segment(tmp_path / "000007.log", log_entry(), log_entry(b"abc", number=2), synced=1).read_bytes()
    (tmp_path / "000007.log").write_bytes(whole[:-lost])
    assert numbers(tmp_path / "000007.log") == [1]
    synced = segment(tmp_path / "000007.log", synced=2).read_bytes()
    (tmp_path / "000007.log").write_bytes(synced + whole[HEAD_BYTES:-lost])
    with pytest.raises(
        Corruption, match=r"000007\.log is damaged at byte .* up to 2 had been synced, but only those up to 1 can"
    ):
        numbers(tmp_path / "000007.log")


@pytest.mark.parametrize("same_segment", [True, False])
def test_a_later_entry_tells_what_had_been_synced(tmp_path, same_segment):
    """Also behind a payload that looks like the beginning of an entry."""
    broken = bytearray(log_entry(log_entry()[: ENTRY.size]))
    broken[-1] ^= 1
    later = log_entry(number=2, synced=1)
    first = segment(tmp_path / "000007.log", bytes(broken), *([later] if same_segment else []))
    others = [] if same_segment else [segment(tmp_path / "000009.log", later)]
    with pytest.raises(Corruption, match=rf"000007\.log is damaged at byte {HEAD_BYTES}: entries up to 1 had"):
        numbers(first, *others)


def test_an_entry_that_does_not_follow_ends_the_log(tmp_path):
    assert numbers(segment(tmp_path / "000007.log", log_entry(), log_entry(number=3))) == [1]
    assert numbers(segment(tmp_path / "000007.log", log_entry(), log_entry(kind=9, number=2))) == [1]
    assert numbers(segment(tmp_path / "000007.log", log_entry(), continued(2, 9)[:-8], b"x" * 8)) == [1]


@pytest.mark.parametrize("head", [b"", b"kvemb", b"x" * HEAD_BYTES])
def test_a_head_that_is_torn_is_damage_only_of_a_segment_that_was_begun(tmp_path, head):
    path = tmp_path / "000007.log"
    path.write_bytes(head)
    assert numbers(path, begun=False) == []
    with pytest.raises(Corruption, match=rf"{path} is damaged: its head"):
        numbers(path)
    first = segment(tmp_path / "000005.log", continued(1, 7))
    with pytest.raises(Corruption, match=rf"{path} is damaged: its head"):
        numbers(first, path, begun=False)


def test_another_version_is_named(tmp_path):
    path = segment(tmp_path / "000007.log", version=9)
    with pytest.raises(UnsupportedFormat, match=rf"{path} has format 9, this kvemb reads formats 2 and 3"):
        numbers(path)
