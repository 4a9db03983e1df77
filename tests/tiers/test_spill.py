"""Dirty rows on their way to the cold store: readable until it has them, whatever becomes of the write."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from blocks import SCHEMA, Later, Now, rows_of, values_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kvemb.backends.memory import MemoryStore
from kvemb.errors import ColdStoreError
from kvemb.rows import hashing
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.hashing import table_size
from kvemb.tiers import spill
from kvemb.tiers.spill import SpillBuffer, slot_bytes


class WhenWaitedFor(Later):
    """Runs what it was given when it is told to, or when a result is waited for."""

    def submit(self, call, /, *args, **named):
        future = super().submit(call, *args, **named)
        result = future.result
        future.result = lambda timeout=None: (self.go(), result(timeout))[1]
        return future


class Spilled:
    """A buffer of slots of four rows over a cold store. told: keys whose rows the cold store has taken; failures: the
    errors that poison the store.
    """

    def __init__(self, executor=None, slots=2, slot_rows=4):
        self.cold, self.told, self.failure = MemoryStore(SCHEMA), [], None
        self.executor = executor or Now()
        self.failures = []
        told = self.tell, self.failures.append
        self.buffer = SpillBuffer(SCHEMA, slot_rows, self.executor, self.write, *told, slots)

    def tell(self, keys):
        self.told.extend(keys.tolist())

    def write(self, rows):
        if self.failure is not None:
            raise self.failure
        self.cold.write(rows)

    def append(self, keys, value=1.0, flags=DIRTY):
        self.buffer.append([rows_of(keys, value, flags=flags)])

    def read(self, keys):
        into = RowBlock(SCHEMA, len(keys))
        known, exists = self.buffer.read(np.array(keys), into)
        return known.tolist(), exists.tolist(), values_of(into.select(exists))


def test_a_row_that_is_hot_again_is_forgotten_even_if_it_is_written():
    spilled = Spilled(Later())
    spilled.append([1, 2, 3, 4])
    spilled.append([5])
    spilled.buffer.discard(np.array([1, 5, 77]))
    assert spilled.read([1, 5])[0] == [False, False]
    spilled.executor.go()
    spilled.buffer.poll()
    assert spilled.buffer.rows == 0
    assert spilled.cold.read(np.array([1, 5]))[1].tolist() == [True, False]


class ShortNumPy:
    """NumPy, of which the nth call of a function finds no memory."""

    def __init__(self, nth):
        self.calls_left = nth

    def __getattr__(self, name):
        real = getattr(np, name)
        if isinstance(real, type) or not callable(real):
            return real
        return lambda *args, **named: self.call(real, args, named)

    def call(self, real, args, named):
        self.calls_left -= 1
        if self.calls_left == 0:
            raise MemoryError("no memory")
        return real(*args, **named)


def test_no_row_is_lost_whichever_allocation_fails(monkeypatch):
    for nth in count(1):
        spilled, model = Spilled(slots=6), {}
        short = ShortNumPy(nth)
        with monkeypatch.context() as patched:
            for module in (spill, hashing):
                patched.setattr(module, "np", short)
            for start in range(60):
                keys = [start, start + 1, start + 2, start % 7]
                model.update(dict.fromkeys(keys, float(start)))
                spilled.append(sorted({*keys}), float(start))
        failed = short.calls_left <= 0
        if failed:
            model[3] = 99.0
            spilled.append([3], 99.0)
            check_refused(spilled, MemoryError)
        _, _, waiting = spilled.read(list(model))
        assert len(waiting) == spilled.buffer.rows
        assert values_of(spilled.cold.read(np.array(list(model)))[0]) | waiting == model
        spilled.buffer.retry(lambda keys: keys == 2)  # which is hot, with another value
        spilled.buffer.drain()
        model.pop(2)
        assert values_of(spilled.cold.read(np.array(list(model)))[0]) == model
        assert len(spilled.failures) == failed
        if not failed:
            break
    assert nth > 100


def test_what_begins_to_be_written_can_be_waited_for():
    spilled = Spilled(Later())
    assert spilled.buffer.start_write() is None
    spilled.append([1])
    writing = spilled.buffer.start_write()
    assert not writing.done()
    spilled.executor.go()
    assert writing.done()
    spilled.buffer.wait_for_write()
    assert spilled.told == [1]


def test_a_write_fails_if_one_before_it_did():
    """A checkpoint waits for the last one alone."""
    spilled = Spilled(Later(), slots=4)
    spilled.append(range(12))
    last = spilled.buffer.start_write()
    spilled.failure = ColdStoreError("full")
    spilled.executor.waiting.pop(0)()
    spilled.failure = None
    assert spilled.executor.waiting
    spilled.executor.go()
    with pytest.raises(ColdStoreError, match="full"):
        last.result()


def test_rows_that_come_back_soon_are_never_written():
    spilled = Spilled(slots=20)
    for start in range(0, 40, 4):
        spilled.append(range(start, start + 4))
        spilled.buffer.discard(np.arange(start, start + 4))
    spilled.buffer.drain()
    assert spilled.told == []


def test_a_slot_is_written_while_the_next_one_is_filled():
    spilled = Spilled(Later())
    spilled.append(range(4))
    assert not spilled.buffer.writing
    spilled.append([4])
    assert len(spilled.executor.waiting) == 1
    assert spilled.read([0, 4])[0] == [True, True]
    spilled.executor.go()
    spilled.buffer.poll()
    assert sorted(spilled.told) == [0, 1, 2, 3]
    assert spilled.read([0, 4])[0] == [False, True]


def test_a_slot_has_memory_for_its_share_of_the_index_however_many_there_are():
    for rows in range(64, 5000):
        beside = slot_bytes(SCHEMA, rows) - rows * (RowBlock.bytes_per_row(SCHEMA) + 1)
        assert 4 * table_size(2 * rows) <= beside


def test_rows_for_which_there_are_too_few_slots_are_written_at_once():
    written = []
    spilled = Spilled(WhenWaitedFor())
    take, spilled.buffer._write = spilled.buffer._write, lambda rows: (written.append(rows.keys.tolist()), take(rows))
    spilled.append([1, 2, 3, 4], 1.0)
    spilled.append([5], 1.0)
    spilled.append([9, 3, 5, 8, 7, 6, 1, 11, 10], 2.0)  # there are two slots of four rows
    assert len(written) == 2  # the slot that was being written comes first
    assert written[-1] == [9, 3, 5, 8, 7, 6, 1, 11, 10]
    assert spilled.read([1, 5, 11])[0] == [False] * 3
    spilled.buffer.poll()
    assert set(written[-1]) <= set(spilled.told)


def test_a_failure_to_write_rows_at_once_keeps_them_and_those_that_come():
    spilled = Spilled()
    spilled.append([1, 2], 1.0)
    spilled.failure = ColdStoreError("full")
    for start, stop in ((2, 15), (15, 20)):
        spilled.append(range(start, stop), 2.0)
    assert spilled.failures == [spilled.failure]
    known, exists, values = spilled.read(range(1, 20))
    assert all(known)
    assert all(exists)
    assert values == {1: 1.0} | dict.fromkeys(range(2, 20), 2.0)
    assert spilled.buffer.rows == 19
    check_refused(spilled, ColdStoreError)


def check_refused(spilled, error):
    buffer = spilled.buffer
    buffer.poll()
    for write in (buffer.drain, buffer.clear, buffer.start_write):
        with pytest.raises(error):
            write()
    (failure,) = spilled.failures
    assert isinstance(failure, error)


def test_what_failed_is_written_when_it_is_tried_again_and_the_newest_rows_count():
    spilled = Spilled(Later(), slots=4)
    spilled.append(range(8), 1.0)
    spilled.buffer.start_write()
    spilled.append([8, 9], 1.0)
    spilled.failure = ColdStoreError("full")
    spilled.executor.go()
    spilled.buffer.poll()
    spilled.append([2], 2.0)  # kept
    spilled.append([2, 3], 3.0)
    spilled.append([5], flags=DIRTY | REMOVED)
    spilled.buffer.retry(lambda keys: keys == 3)  # it is hot again, and newer
    spilled.buffer.start_write()
    spilled.executor.go()
    spilled.buffer.poll()
    assert len(spilled.failures) == 2  # still full
    assert spilled.read([2, 3, 5, 9]) == ([True] * 4, [True, True, False, True], {2: 3.0, 3: 1.0, 9: 1.0})
    spilled.failure = None
    spilled.buffer.retry(lambda keys: keys == 3)
    spilled.buffer.start_write()
    spilled.executor.go()
    spilled.buffer.drain()
    assert values_of(spilled.cold.read(np.arange(10))[0]) == dict.fromkeys({*range(10)} - {5}, 1.0) | {2: 3.0}
    assert spilled.buffer.rows == 0
    spilled.append([7], 4.0)
    assert spilled.read([7])[2] == {7: 4.0}


def test_a_failure_that_no_call_has_noticed_is_tried_again_too():
    spilled = Spilled(Later())
    spilled.append([1, 2], 1.0)
    spilled.buffer.start_write()
    spilled.failure = ColdStoreError("full")
    spilled.executor.go()
    spilled.failure = None
    spilled.buffer.retry(lambda keys: keys < 0)
    spilled.buffer.start_write()
    spilled.executor.go()
    spilled.buffer.drain()
    assert values_of(spilled.cold.read(np.arange(3))[0]) == {1: 1.0, 2: 1.0}
    assert spilled.failures == []


@given(
    st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 30), max_size=12, unique=True)), max_size=60),
    st.integers(2, 9),
)
@settings(deadline=None)
def test_any_history_equals_its_model(history, slots):
    executor = WhenWaitedFor()
    spilled = Spilled(executor, slots=slots)
    hot, model = set(), {}
    for number, (act, keys) in enumerate(history):
        if act <= 2:
            flags = DIRTY | (REMOVED if act == 2 else 0)
            spilled.append(keys, float(number), flags)
            hot -= set(keys)
            model.update(dict.fromkeys(keys, None if act == 2 else float(number)))
        elif act == 3:
            spilled.buffer.discard(np.array(keys, np.int64))
            hot |= set(keys)  # where they are dirty, so that nobody asks for them here
        elif act == 4:
            executor.go()
            spilled.buffer.poll()
        elif act == 5:
            spilled.buffer.start_write()
        else:
            spilled.buffer.drain()
            assert spilled.buffer.rows == 0
        wanted = [key for key in range(31) if key not in hot]
        known, exists, values = spilled.read(wanted)
        cold, _ = spilled.cold.read(np.array(wanted, np.int64))
        beneath = values_of(cold)
        for key, is_known, is_row in zip(wanted, known, exists, strict=True):
            found = (values.get(key) if is_row else None) if is_known else beneath.get(key)
            assert found == model.get(key), key
    spilled.buffer.clear()
    spilled.append([99])
    assert spilled.read([*range(31), 99])[0] == [False] * 31 + [True], "what is cleared is gone"
