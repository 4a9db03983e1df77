"""Rows on their way to the cold store: readable until it has them, whatever becomes of the write."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from blocks import SCHEMA, Later, rows_of, values_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kvemb.backends.memory_store import MemoryStore
from kvemb.errors import ColdStoreError
from kvemb.limits import Limits
from kvemb.memory import memtables
from kvemb.memory.memtables import Memtable, MemtableMemory, Memtables, row_bytes
from kvemb.rows import hashing
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.hashing import table_size
from kvemb.threads.pool import Here

BYTES = row_bytes(SCHEMA)


class WhenWaitedFor(Later):
    """Runs what it was given when it is told to, or when a result is waited for."""

    def submit(self, call, /, *args, **named):
        future = super().submit(call, *args, **named)
        result, exception = future.result, future.exception
        future.result = lambda timeout=None: (self.go(), result(timeout))[1]
        future.exception = lambda timeout=None: (self.go(), exception(timeout))[1]
        return future


class Waiting:
    """Memtables of eight rows over a cold store. moved: keys of rows that came; failures: what poisons the store."""

    def __init__(self, executor=None, most=8, room=1 << 20):
        self.cold, self.moved, self.failure, self.failures = MemoryStore(SCHEMA), [], None, []
        self.executor, self.memory = executor or Here(), MemtableMemory(room)
        self.writes = []
        self.memtables = Memtables(
            SCHEMA, self.memory, most, self.executor, self.write, lambda keys: self.moved.extend(keys.tolist()),
            self.failures.append, Limits(batch_rows=4),
        )  # fmt: skip

    def write(self, rows):
        if self.failure is not None:
            raise self.failure
        self.cold.write(rows)
        self.writes.append(rows.keys.tolist())

    def add(self, keys, value=1.0, flags=DIRTY):
        self.memtables.add([rows_of(keys, value, flags=flags)])

    def read(self, keys):
        into = RowBlock.with_keys(SCHEMA, np.array(keys, np.int64))
        known, exists = np.zeros((2, len(keys)), np.bool_)
        self.memtables.read(into, known, exists)
        assert np.array_equal(self.memtables.has(into.keys), known)
        assert self.memtables._kept or not into.flags.any(), "rows that are found in memtables are clean"
        return known.tolist(), exists.tolist(), values_of(into.select(exists))

    def below(self, keys):
        return values_of(self.cold.read(np.array(list(keys), np.int64))[0])


def test_the_last_row_of_a_key_is_found():
    random, table, model = np.random.default_rng(1), Memtable(SCHEMA, 5000), dict[int, float]()
    for moment in range(40):
        keys = random.integers(-300, 300, random.integers(0, 120))
        table.put(rows_of(keys, float(moment)))
        model.update(dict.fromkeys(keys.tolist(), float(moment)))
        places = table.find(every := np.arange(-310, 310))
        assert {key for key, place in zip(every.tolist(), places.tolist(), strict=True) if place >= 0} == model.keys()
        assert values_of(table.block.select(places[places >= 0])) == model


def test_a_row_has_memory_for_its_share_of_the_index():
    for rows in range(256, 5000):
        assert 4 * table_size(2 * rows) <= rows * (BYTES - RowBlock.bytes_per_row(SCHEMA))


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
        waiting, model = Waiting(), {}
        short = ShortNumPy(nth)
        with monkeypatch.context() as patched:
            for module in (memtables, hashing):
                patched.setattr(module, "np", short)
            for start in range(60):
                keys = [start, start + 1, start + 2, start % 7]
                model.update(dict.fromkeys(keys, float(start)))
                waiting.add(sorted({*keys}), float(start))
        failed = short.calls_left <= 0
        if failed:
            model[3] = 99.0
            waiting.add([3], 99.0)
            check_refused(waiting, MemoryError)
        _, _, found = waiting.read(list(model))
        assert waiting.below(model) | found == model
        waiting.memtables.retry(lambda keys: keys == 2)  # which is hot, with another value
        waiting.memtables.flush()
        model.pop(2)
        below = waiting.below(model)
        assert below == model
        assert len(waiting.failures) == failed
        assert waiting.memory.used == 0
        if not failed:
            break
    assert nth > 25


def check_refused(waiting, error):
    with pytest.raises(error):
        waiting.memtables.flush()
    (failure,) = waiting.failures
    assert isinstance(failure, error)


def test_what_begins_to_be_written_can_be_waited_for():
    waiting = Waiting(Later())
    assert waiting.memtables.seal() is None
    waiting.add([1])
    writing = waiting.memtables.seal()
    assert not writing.done()
    assert waiting.read([1])[0] == [True]
    waiting.executor.go()
    assert writing.done()
    assert (waiting.writes, waiting.read([1])[0]) == ([[1]], [False])
    assert waiting.moved == [1]


def test_a_memtable_is_written_while_the_next_one_is_filled_and_in_order():
    waiting = Waiting(Later())
    waiting.add(range(8))
    assert not waiting.executor.waiting
    waiting.add([8], 2.0)
    waiting.add([3], 2.0)
    assert len(waiting.executor.waiting) == 1
    assert waiting.read([0, 3, 8]) == ([True] * 3, [True] * 3, {0: 1.0, 3: 2.0, 8: 2.0})
    waiting.executor.go()
    assert waiting.writes == [[*range(8)]]
    assert waiting.read([0, 3])[0] == [False, True]


def test_a_write_takes_no_memtable_that_is_sealed_after_it_was_given():
    """Between the two the executor may have a snapshot's file, or the copy of the cold database."""
    waiting = Waiting(Later())
    waiting.add([1], 1.0)
    waiting.memtables.seal()
    waiting.executor.submit(lambda: waiting.writes.append("the copy"))
    waiting.add([1, 2], 2.0)
    waiting.memtables.seal()
    assert len(waiting.executor.waiting) == 3
    waiting.executor.go()
    assert waiting.writes == [[1], "the copy", [1, 2]]


def test_what_is_forgotten_is_not_written():
    waiting = Waiting(Later())
    waiting.add([1])
    waiting.memtables.seal()
    with waiting.memtables.paused():
        waiting.memtables.forget()
    waiting.add([2])
    waiting.executor.go()
    assert (waiting.writes, waiting.read([1, 2])[0]) == ([], [False, True])
    assert waiting.memory.used == waiting.memtables.nbytes == BYTES


def test_a_write_fails_if_one_before_it_did_and_is_tried_again_by_the_next():
    """A checkpoint waits for the last one alone."""
    waiting = Waiting(Later())
    waiting.add(range(12))
    last = waiting.memtables.seal()
    waiting.failure = ColdStoreError("full")
    waiting.executor.go()
    with pytest.raises(ColdStoreError, match="full"):
        last.result()
    waiting.add([4], 2.0)
    waiting.add([5], flags=DIRTY | REMOVED)
    assert waiting.read([0, 4, 5]) == ([True] * 3, [True, True, False], {0: 1.0, 4: 2.0})
    waiting.failure = None
    waiting.memtables.retry(lambda keys: keys < 0)
    waiting.executor.go()
    assert waiting.below(range(12)) == dict.fromkeys({*range(12)} - {5}, 1.0) | {4: 2.0}
    assert waiting.memtables.rows == waiting.memory.used == 0


def test_memory_is_made_by_writing_the_largest():
    """The first has more than three quarters of the memory: it is written before a caller has to wait."""
    first = Waiting(WhenWaitedFor(), most=100, room=100 * BYTES)
    second = Waiting(WhenWaitedFor(), most=100)
    second.memtables._memory = second.memory = first.memory
    first.memory.join(second.memtables)
    first.add(range(70))
    second.add(range(5))
    assert not first.executor.waiting
    second.add(range(5, 10))
    assert first.executor.waiting
    assert not second.executor.waiting
    second.add(range(10, 40))
    assert (first.writes, second.writes) == ([[*range(70)]], []), "second waited for first"
    assert first.memory.used == 40 * BYTES == second.memtables.nbytes


def test_what_cannot_be_written_takes_more_than_its_memory():
    waiting = Waiting(most=100, room=20 * BYTES)
    waiting.failure = ColdStoreError("full")
    waiting.add(range(50))
    assert waiting.failures[0] is waiting.failure
    assert waiting.read(range(50))[2] == dict.fromkeys(range(50), 1.0)
    assert waiting.memory.used == 50 * BYTES


@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 30), max_size=12, unique=True)), max_size=60),
    st.integers(2, 40),
)
@settings(deadline=None)
def test_any_history_equals_its_model(history, most):
    executor = WhenWaitedFor()
    waiting, model = Waiting(executor, most, room=60 * BYTES), {}
    for number, (act, keys) in enumerate(history):
        if act <= 2:
            removes = act == 2
            waiting.add(keys, float(number), DIRTY | (REMOVED if removes else 0))
            model.update(dict.fromkeys(keys, None if removes else float(number)))
        elif act == 3:
            executor.go()
        elif act == 4:
            waiting.memtables.seal()
        else:
            waiting.memtables.flush()
            assert waiting.memtables.rows == 0
        known, exists, values = waiting.read(range(31))
        beneath = waiting.below(range(31))
        for key, is_known, is_row in zip(range(31), known, exists, strict=True):
            found = (values.get(key) if is_row else None) if is_known else beneath.get(key)
            assert found == model.get(key), key
        assert waiting.memory.used == waiting.memtables.nbytes <= 60 * BYTES
    waiting.memtables.end()
    assert waiting.memory.used == 0
    waiting.add([99])
    assert waiting.read([*range(31), 99])[0] == [False] * 31 + [True], "what is cleared is gone"


def test_memory_grows_in_steps_while_many_variables_make_small_files():
    """Files of 1 MiB are large enough: here, of 17 parts."""
    part, asked, there = (1 << 20) // 16 // BYTES, [], [True, True, False, True, True, True, True, True]

    def more(nbytes):
        asked.append(nbytes)
        return there.pop(0)

    memory = MemtableMemory(16 * part * BYTES, (16 + 8 * 4) * part * BYTES, more)
    limits = Limits(batch_rows=part)
    made = [
        Memtables(SCHEMA, memory, 100 * part, Here(), lambda rows: None, lambda keys: None, pytest.fail, limits)
        for _ in range(2)
    ]
    totals = []
    for start in range(200):
        for each in made:
            each.add([rows_of(range(start * part, (start + 1) * part))])
        totals.append(memory.total // BYTES // part)
    assert totals[0] == 16
    assert totals[-1] == 16 + 5 * 4
    assert asked == [4 * part * BYTES] * 6, "once in vain"
