"""Which keys may be in RocksDB's memory, for floors of all ages."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.backends.table_files.written import WrittenKeys


def marked(written: WrittenKeys, keys: range, floor: int) -> list[int] | None:
    states = np.zeros(len(keys), np.uint8)
    ordered = np.array(keys, np.uint64)
    return ordered[states == 3].tolist() if written.mark(ordered, floor, states, 3) else None


def write(written: WrittenKeys, keys: range) -> None:
    with written.writing(np.array(keys, np.uint64)):
        pass


def test_keys_written_above_a_floor_are_known():
    memory = [0]
    written = WrittenKeys(lambda: memory[0])
    assert written.floor() == 0
    assert marked(written, range(5), 0) == []
    write(written, range(10))
    memory[0] = 10
    assert written.floor() == 0
    assert marked(written, range(20), 0) == list(range(10))
    write(written, range(5, 8))
    memory[0] = 3  # the first ten are in a file
    assert written.floor() == 10
    assert marked(written, range(20), 10) == [5, 6, 7]
    assert marked(written, range(20), 0) == list(range(10))
    memory[0] = 0
    assert marked(written, range(20), written.floor()) == []


def test_a_floor_below_what_was_forgotten_is_refused():
    memory = [0]
    written = WrittenKeys(lambda: memory[0])
    assert written.floor() == 0
    for start in range(0, 100_000, 500):
        memory[0] = min(memory[0] + 500, 2000)
        write(written, range(start, start + 500))
    assert written._cells.nbytes < 200_000
    assert marked(written, range(10), 0) is None
    floor = written.floor()
    assert floor >= 100_000 - 2000
    assert marked(written, range(90_000, 100_000), floor) == list(range(floor, 100_000))


def test_a_floor_never_falls_below_what_was_forgotten():
    memory = [0]
    written = WrittenKeys(lambda: memory[0])
    for start in range(0, 5000, 500):
        write(written, range(start, start + 500))
    memory[0] = 5000  # entries that came after the writes were counted
    assert written.floor() == written._forgotten > 0


def test_keys_of_a_write_that_failed_stay_until_later_ones_are_in_files():
    memory = [0]
    written = WrittenKeys(lambda: memory[0])
    write(written, range(10))
    with pytest.raises(OSError, match="full"), written.writing(np.arange(50, 60, dtype=np.uint64)):
        raise OSError("full")
    memory[0] = 10  # the write was made after all, and the first ten are in a file
    assert marked(written, range(100), written.floor()) == [*range(10), *range(50, 60)]
    write(written, range(3))
    memory[0] = 3
    assert written.floor() == 10
    assert set(marked(written, range(100), 10) or []) >= {0, 1, 2}


def test_entries_that_were_in_memory_before_have_unknown_keys_until_they_are_in_files():
    """A store opened anew over another one's writes once found no row of these."""
    memory = [100]
    written = WrittenKeys(lambda: memory[0])
    assert written.floor() is None
    write(written, range(10))
    memory[0] = 110
    assert written.floor() is None
    memory[0] = 10
    assert marked(written, range(20), written.floor()) == list(range(10))
