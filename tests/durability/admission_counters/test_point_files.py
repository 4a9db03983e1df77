"""Which counter file a point has: the same as before where nothing was counted, otherwise a new one, or none."""

from __future__ import annotations

import numpy as np

from kvemb.durability.admission_counters.counter_file import read_counters
from kvemb.durability.admission_counters.point_files import Stored, write_counter_files
from kvemb.operations.admission_counters import ROWS, Counters


def counters(value: int) -> Counters:
    return Counters(np.full((ROWS, 256), value, np.uint8), value)


def test_a_file_is_linked_until_its_variable_counts_again(tmp_path):
    first = write_counter_files(tmp_path / "1", 1, {"a", "b", "c"}, {"a": counters(1), "b": counters(2)}, {}, {})
    assert {name: entry.file for name, entry in first.items()} == {"a": "000001-000.counts", "b": "000001-001.counts"}
    known: Stored = {name: (tmp_path / "1", entry) for name, entry in first.items()}
    again = write_counter_files(tmp_path / "2", 2, {"a", "b", "c"}, {"b": counters(3)}, {}, known)
    assert again["a"] == first["a"]
    assert (tmp_path / "2" / again["a"].file).samefile(tmp_path / "1" / first["a"].file)
    assert read_counters(tmp_path / "2", again["b"]).values.max() == 3
    assert {path.name for path in (tmp_path / "2").iterdir()} == {entry.file for entry in again.values()}


def test_what_is_brought_replaces_what_is_known_and_what_is_counted_replaces_both(tmp_path):
    there = write_counter_files(tmp_path / "other", 9, ["a", "b"], {"a": counters(9), "b": counters(9)}, {}, {})
    here = write_counter_files(tmp_path / "1", 1, ["a", "b"], {"a": counters(1), "b": counters(1)}, {}, {})
    adopted: Stored = {name: (tmp_path / "other", entry) for name, entry in there.items()}
    known: Stored = {name: (tmp_path / "1", entry) for name, entry in here.items()}
    found = write_counter_files(tmp_path / "2", 2, ["a", "b"], {"b": counters(5)}, adopted, known)
    assert [read_counters(tmp_path / "2", found[name]).counted for name in ("a", "b")] == [9, 5]
    assert found["a"].file == "000002-000.counts", "the other store's name may be in use here"


def test_without_a_count_and_without_the_variable_there_is_no_file(tmp_path):
    first = write_counter_files(tmp_path / "1", 1, ["a", "b"], {"a": counters(1), "b": counters(1)}, {}, {})
    known: Stored = {name: (tmp_path / "1", entry) for name, entry in first.items()}
    assert write_counter_files(tmp_path / "2", 2, ["b"], {"b": counters(0)}, {}, known) == {}
    assert not (tmp_path / "2").exists()
