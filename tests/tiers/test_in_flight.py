"""Rows in flight from a lookup to the update that follows: read once, never lost, never stale, and paid for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of
from histories import small_spill

import kvemb
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.memory.budget import GrowingPart
from kvemb.memory.staging import Holding
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.store_state import StoreState
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.in_flight import RowsInFlight
from kvemb.tiers.located import Located

Opener = Callable[..., kvemb.Store]
ROWS = np.arange(200)
MISSING = np.array([1000, 1001])
# What a row takes beside its block: four cells of the index, the number of its table, two flags.
BESIDE = 4 * 4 + 8 + 2

pytestmark = pytest.mark.limits(**small_spill(8))


# Alone.


class Flight:
    """Rows in flight with a pool of their own. landed: what was promoted, and whether by score."""

    def __init__(self, total: int = 1 << 20) -> None:
        self.memory, self.state, self.landed = Holding(GrowingPart(2 * total)), StoreState("test"), []
        self.rows = RowsInFlight(self.memory, self.state, lambda *given: self.landed.append(given))

    def read(self, *keys: int) -> tuple[list[bool], list[bool], dict[int, float]]:
        """Which keys are known to be here, which exist, and the rows that do."""
        into = rows_of(keys, -1.0)
        known, exists = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
        self.rows.read(into, known, exists)
        return known.tolist(), exists.tolist(), values_of(into.select(exists))


def found(keys: Any, exists: Any, value: float = 1.0) -> Located:
    """What a lookup of keys found, none of them hot."""
    count = len(keys)
    cells, at = np.full(count, -1), np.arange(count)
    return Located(np.array(keys), None, cells, at, rows_of(keys, value), np.array(exists, bool), np.ones(count, bool))


def test_rows_that_are_kept_are_found_until_they_are_discarded():
    flight = Flight()
    assert flight.read(1, 2) == ([False, False], [False, False], {})
    assert flight.rows.keep(found([3, 1, 7], [True, False, True]), by_score=False, briefly=False) is None
    assert flight.rows.left == 3
    assert flight.read(7, 2, 1, 3) == ([True, False, True, True], [True, False, False, True], {7: 1.0, 3: 1.0})
    flight.rows.discard(np.array([3, 2]))
    assert flight.rows.left == 2
    assert flight.read(3, 7) == ([False, True], [False, True], {7: 1.0})
    flight.rows.land()
    ((left, by_score),) = flight.landed
    assert (left.rows.keys.tolist(), left.exists.tolist(), by_score) == ([7], [True], False)
    assert (flight.rows.left, flight.memory.held) == (0, 0)
    flight.rows.land()
    assert len(flight.landed) == 1, "once"


@pytest.mark.parametrize("count", [8, 9, 1000, 1023, 1024, 1025])
def test_what_is_kept_takes_no_more_memory_than_is_paid(count):
    flight = Flight()
    flight.rows.keep(found(range(count), np.ones(count)), by_score=False, briefly=False)
    flight.read(0)
    kept, index = flight.rows._found, flight.rows._index
    columns = [kept.rows.keys, kept.rows.scores, kept.rows.steps, kept.rows.flags, kept.rows.words]
    beside = [index._cells, kept.exists, flight.rows._here, np.empty(count, np.int64)]  # the last: kept.owners
    assert kept.keys is kept.rows.keys
    assert flight.memory.held >= sum(column.nbytes for column in columns + beside)


def test_what_cannot_be_paid_is_returned_a_quarter_at_a_time():
    row = RowBlock.bytes_per_row(SCHEMA) + BESIDE
    flight = Flight(5 * row)
    rest = flight.rows.keep(found(range(8), np.ones(8)), by_score=False, briefly=False)
    assert flight.memory.held == 4 * row
    assert flight.read(3, 4)[0] == [True, False]
    assert rest.rows.keys.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("briefly", [False, True])
def test_without_memory_nothing_is_kept_unless_another_thread_is_about_to_take_it(briefly):
    flight = Flight(total=0)
    given = found([1, 2], [True, True])
    rest = flight.rows.keep(given, by_score=True, briefly=briefly)
    assert rest is (None if briefly else given)
    assert flight.read(1, 5)[0] == [briefly, False]
    flight.rows.land()
    assert [by_score for _, by_score in flight.landed] == ([True] if briefly else [])
    assert flight.memory.held == 0


def test_an_update_is_expected_unless_one_took_nothing():
    flight = Flight()
    for taken, expected in (([1], True), ([], False), ([1, 2], True), ([2], True)):
        flight.rows.expected = True
        flight.rows.keep(found([1, 2], [True, True]), by_score=False, briefly=False)
        flight.rows.discard(np.array(taken, np.int64))
        flight.rows.land()
        assert flight.rows.expected is expected


def test_a_failure_to_land_poisons_and_raises_nothing():
    flight = Flight()
    flight.rows._promote = lambda *given: 1 / 0
    flight.rows.keep(found([1], [True]), by_score=False, briefly=False)
    flight.rows.land()
    assert isinstance(flight.state.cause, ZeroDivisionError)
    assert flight.memory.held == 0


# In a variable.


def column(numbers: Any) -> Any:
    """Rows of one element."""
    return np.array(numbers, np.float32).reshape(-1, 1)


class Trained:
    """A variable with 200 rows of the value of their key, 16 of them hot, whose score is the number of their uses.

    keys: five that are cold.
    """

    def __init__(self, store: kvemb.Store, **arguments: Any) -> None:
        self.store = store
        self.variable = store.get_variable(
            "table", dim=1, restrict_policy=kvemb.FrequencyRestrictPolicy(),
            **{"hot_rows": 16, "optimizer": kvemb.optimizers.SGD(1.0), **arguments},
        )  # fmt: skip
        self.fill()
        self.storage = inside(self.variable).storage
        self._taken = np.empty(0, np.int64)
        self.keys = self.fresh()

    def fill(self, added: float = 0.0) -> None:
        """Set each row to its key and this; so few at a time that the last ones wait to be spilled."""
        for keys in np.split(ROWS, 50):
            self.variable.upsert(keys, column(keys + added))
        inside(self.store).in_order(int)  # until all full memtables are written

    def fresh(self, count: int = 5) -> Any:
        """Cold keys that were not given before."""
        keys = np.setdiff1d(self.cold(), self._taken)[:count]
        self._taken = np.append(self._taken, keys)
        return keys

    def put(self, value: float, score: float) -> None:
        """Put whole rows of the keys."""
        rows = RowBlock(self.storage.schema, len(self.keys))
        rows.keys[:], rows.scores[:], rows.values[:] = self.keys, score, value
        inside(self.variable).operations.put(rows, 9)

    def cold(self) -> Any:
        """The keys that are in no memory."""
        with self.storage.access.held():
            return self.storage._locator.unknown(ROWS)

    def waiting(self) -> Any:
        """The keys that wait to be spilled."""
        with self.storage.access.held():
            at = self.storage._locator._look(ROWS)
        return at.rows.keys[at.known]

    def hot(self, keys: Any) -> list[bool]:
        """Which keys are hot."""
        return (self.storage.hot_tables.find(keys, self.storage.hot_tables.owners(keys)) >= 0).tolist()

    @property
    def left(self) -> int:
        """Keys in flight."""
        return self.storage.in_flight.left

    @property
    def reads(self) -> int:
        """Rows that were read."""
        return self.storage.counts.cold_reads

    def look(self, keys: Any = None) -> None:
        """Look up, and find the rows of before."""
        keys = self.keys if keys is None else keys
        assert (self.variable.lookup(keys)[:, 0] == keys).all()

    def train(self, keys: Any = None) -> None:
        """Subtract 1."""
        keys = self.keys if keys is None else keys
        self.variable.apply_gradients(keys, column(np.ones(len(keys))))

    def check(self, rows: Any, uses: Any, keys: Any = None) -> None:
        """Rows and uses are these, also in the store's own check and in an export."""
        keys = self.keys if keys is None else keys
        rows = np.broadcast_to(rows, len(keys)).tolist()
        assert self.variable.lookup(keys, touch=False)[:, 0].tolist() == rows
        found = self.variable.restrict_policy.status(keys)
        assert found.tolist() == np.broadcast_to(uses, len(keys)).tolist()
        self.store.check()
        exported, values = self.variable.export()
        assert len(exported) == self.variable.size()
        assert values[np.searchsorted(exported, keys), 0].tolist() == rows


@pytest.fixture
def at(store: kvemb.Store) -> Trained:
    return Trained(store)


@pytest.mark.parametrize("durability", ["checkpoint", "write"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_row_that_is_looked_up_and_then_trained_is_read_once(open_store, tmp_path, durability, devices):
    at = Trained(open_store(tmp_path / "store", durability=durability), devices=["cpu"] * devices)
    before = at.reads
    at.look()
    assert (at.left, at.hot(at.keys)) == (5, [False] * 5)
    at.train()
    assert (at.left, at.reads - before, at.storage.staged.in_flight.held) == (0, 5, 0)
    assert at.hot(at.keys) == [True] * 5
    at.check(at.keys - 1, 2)
    assert at.reads - before == 5


def test_the_end_of_a_lookup_that_forgets_reads_ahead_leaves_its_rows_in_flight(at):
    at.keys = at.keys[:4]  # as many as are read ahead at a time
    at.variable.prefetch(at.keys)
    (fetch,) = at.storage.ahead._kept
    fetch.wait()
    before = at.reads
    at.look()
    assert at.storage.ahead._kept == [], "all of its rows were taken"
    assert (at.left, at.reads) == (4, before)
    at.train()
    at.check(at.keys - 1, 2)


SOME = column(np.zeros(4))
# Calls that may come between a lookup and its update, on four other keys, by what becomes of the rows in flight.
BETWEEN: dict[str, dict[str, Callable[[Trained, Any], object]]] = {
    "landed": {
        "lookup": lambda at, other: (at.look(other), at.look(other)),
        "untouched": lambda at, other: at.variable.lookup(other, touch=False),
        "scores": lambda at, other: at.variable.restrict_policy.status(other),
        "uses": lambda at, other: at.variable.restrict_policy.apply_update(other),
        "remove": lambda at, other: at.variable.remove(other),
        "export": lambda at, _: at.variable.export(),
        "stats": lambda at, _: at.variable.stats,
        "check": lambda at, _: at.store.check(),
        "flush": lambda at, _: at.store.flush(),
        "checkpoint": lambda at, _: checkpoint_has_uses(at),
        "warm": lambda at, other: inside(at.variable).operations.warm(other),
        "restrict": lambda at, _: at.variable.restrict(at.variable.size() - 1),
    },
    "kept": {
        "upsert": lambda at, other: at.variable.upsert(other, SOME),
        "accum": lambda at, other: at.variable.accum(other, SOME, SOME, np.ones(4, bool)),
        "train": lambda at, other: at.train(other),
        "prefetch": lambda at, other: at.variable.prefetch(other),
        "prefetch of the same": lambda at, _: at.variable.prefetch(at.keys),
        "optimizer": lambda at, _: setattr(at.variable, "optimizer", kvemb.optimizers.SGD(1.0)),
        "reclaiming": lambda at, _: at.storage._reclaimer._reclaim_if_free(),
    },
}


def checkpoint_has_uses(at: Trained) -> None:
    path = at.store.path.with_name("checkpoint")
    at.store.checkpoint(path)
    with kvemb.restore(path, path.with_name("copy")) as copy:
        assert (copy.variables["table"].restrict_policy.status(at.keys) == 2).all()


@pytest.mark.parametrize("fate", BETWEEN)
def test_no_call_in_between_loses_a_use_or_an_update(at, fate):
    for call, between in BETWEEN[fate].items():
        at.keys, other = np.split(at.fresh(9), [5])
        at.look()
        between(at, other)
        assert at.left == (5 if fate == "kept" else 0), call
        at.train()
        at.check(at.keys - 1, 2)


def test_every_kind_of_change_takes_them(at):
    for change in (
        lambda: at.variable.upsert(at.keys, column([7] * 5)),
        lambda: at.variable.accum(at.keys, column([0] * 5), column(7 - at.keys), np.ones(5, bool)),
        lambda: at.variable.apply_gradients(at.keys, column(at.keys - 7)),
        lambda: at.put(7.0, 2.0),
    ):
        at.keys = at.fresh()
        at.look()
        before = at.reads
        change()
        assert (at.left, at.reads) == (0, before)
        at.check(7.0, 2)


@pytest.mark.parametrize("how", ["remove", "clear"])
def test_rows_that_are_removed_in_between_are_gone(at, how):
    at.look()
    at.variable.remove(at.keys) if how == "remove" else at.variable.clear()
    assert not at.variable.lookup(at.keys, return_exists=True)[1].any()
    at.train()
    at.check(-1.0, 1)


def test_keys_that_had_no_row_are_not_asked_for_again_and_may_get_one(store, monkeypatch):
    at, asked, read = Trained(store), [], Fetch.read
    monkeypatch.setattr(Fetch, "read", lambda self, cold: asked.extend(self.keys.tolist()) or read(self, cold))
    changes = {
        "upsert": lambda: at.variable.upsert(at.keys, column(-1)),
        "accum": lambda: at.variable.accum(at.keys, column(0), column(-1), [False]),
        "train": at.train,
        "put": lambda: at.put(-1.0, 1.0),
    }
    for number, (how, change) in enumerate(changes.items()):
        missing = MISSING + 2 * number
        at.keys = missing[:1]
        asked.clear()
        assert not at.variable.lookup(missing, return_exists=True)[1].any()
        assert (at.left, sorted(asked)) == (2, missing.tolist())
        change()
        assert len(asked) == 2 or how == "put"
        at.check(-1.0, 1)
        assert at.variable.lookup(missing, return_exists=True, touch=False)[1].tolist() == [True, False]


def test_gradients_that_are_refused_leave_no_row_and_ask_for_nothing(store):
    at = Trained(store, admission=kvemb.Admission(sightings=2))
    for left in (False, True):
        before = at.storage.counts.refused
        at.variable.lookup(MISSING)
        at.train(MISSING)
        assert at.storage.counts.refused - before == (0 if left else 2)
        at.look()
        assert at.storage.in_flight.expected, "an update followed, though it took none of the keys"
        assert at.variable.lookup(MISSING, return_exists=True, touch=False)[1].tolist() == [left, left]
    at.check(-1.0, 1, MISSING)


# What fails.


def failing(*_: Any, **__: Any) -> Any:
    raise MemoryError("no memory")


@pytest.mark.parametrize("what", ["constraint", "partitioner", "prepare", "policy"])
def test_an_update_that_fails_before_anything_changed_leaves_rows_and_uses(store, monkeypatch, what):
    broken = [False]

    def partitioner(keys: Any, count: int) -> Any:
        if broken[0]:
            raise MemoryError("no memory")
        return keys % count

    def constraint(values: Any) -> Any:
        if broken[0]:
            raise MemoryError("no memory")
        return values

    at = Trained(store, devices=["cpu"] * 2, partitioner=partitioner, constraint=constraint)
    at.look()
    with monkeypatch.context() as patched:
        broken[0] = what in ("constraint", "partitioner")
        if what == "prepare":
            patched.setattr(at.storage.hot_tables, "prepare", failing)
        elif what == "policy":
            patched.setattr(inside(at.variable).operations._scoring, "first", failing)
        with pytest.raises(MemoryError):
            at.train()
    broken[0] = False
    assert at.left == 5
    assert store.state.cause is None
    before = at.reads
    at.train()
    assert at.reads == before
    at.check(at.keys - 1, 2)


def test_a_store_that_is_poisoned_meanwhile_reads_the_newest_rows(open_store, tmp_path, monkeypatch):
    store = open_store(tmp_path / "store")
    at = Trained(store)
    store.flush()
    at.fill(1000.0)
    keys = np.concatenate([at.waiting(), at.cold()[:5]])
    assert len(keys) > 5
    assert (at.variable.lookup(keys)[:, 0] == keys + 1000).all()
    assert at.left == len(keys)
    store.state.poison(ColdStoreError("disk full"))
    for _ in range(2):
        rows = at.variable.lookup(np.concatenate([ROWS, keys]))[:, 0]
        assert (rows == np.concatenate([ROWS, keys]) + 1000).all()
    assert at.left == len(keys)
    with pytest.raises(Poisoned):
        at.train()


def test_rows_in_flight_keep_their_uses_until_a_poisoned_store_has_recovered(at):
    at.look()
    assert at.left == 5
    at.store.state.poison(ColdStoreError("disk full"), intact=True)
    assert (at.variable.lookup(at.keys)[:, 0] == at.keys).all()
    assert at.left == 5
    at.store.recover()
    at.check(at.keys, 2)


# Other threads.


class During:
    """Calls something during the next cold read, when no thread has the variable's lock."""

    def __init__(self, at: Trained, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call
        read = Fetch.read

        def reading(fetch: Fetch, cold: Any) -> None:
            read(fetch, cold)
            if (call := self.call) is not None:
                self.call = None
                call()

        monkeypatch.setattr(Fetch, "read", reading)


def test_rows_that_another_lookup_left_in_flight_during_the_read_are_the_newest(at, monkeypatch):
    during = During(at, monkeypatch, at.look)
    calls = {
        "lookup": (at.look, 0, 3),
        "update": (at.train, -1, 2),
        "put": (lambda: at.put(7.0, 9.0), None, 9),
        "use": (lambda: at.variable.restrict_policy.apply_update(at.keys), 0, 3),
    }
    for name, (call, added, uses) in calls.items():
        at.keys, during.call = at.fresh(), at.look
        call()
        assert at.left == (5 if name == "lookup" else 0)
        at.check(7.0 if added is None else at.keys + added, uses)
    at.keys, during.call = at.fresh(), at.look
    at.variable.remove(at.keys)
    assert at.left == 0
    assert not at.variable.lookup(at.keys, return_exists=True)[1].any()


def test_an_update_leaves_what_another_lookup_left_in_flight_to_its_update(at, monkeypatch):
    other = at.cold()[10:14]
    During(at, monkeypatch, lambda: at.look(other))
    at.train()
    assert at.left == 4
    before = at.reads
    at.train(other)
    assert (at.left, at.reads) == (0, before)
    at.check(at.keys - 1, 1)
    at.check(other - 1, 2, other)


def test_a_lookup_lands_what_another_lookup_left_in_flight(at, monkeypatch):
    other = at.cold()[10:14]
    During(at, monkeypatch, lambda: at.look(other))
    at.look()
    assert at.hot(other) == [True] * 4
    at.check(at.keys, 2)
    at.check(other, 2, other)


def test_a_key_that_gets_a_row_while_another_lookup_finds_none_has_one(at, monkeypatch):
    During(at, monkeypatch, lambda: at.variable.upsert(MISSING, column([5, 6])))
    assert at.variable.lookup(MISSING)[:, 0].tolist() == [5.0, 6.0]
    at.check([5.0, 6.0], 2, MISSING)


# Where rows go, and their memory.


def test_a_row_that_waits_to_be_spilled_and_is_used_again_is_offered_again(at):
    at.store.flush()
    at.train(ROWS[at.hot(ROWS)])  # these are dirty now, and no other row
    at.look(at.keys[:3])
    at.train(at.keys[:3])
    keys = at.waiting()
    assert len(keys) == 3
    at.variable.lookup(keys)
    at.train(keys)
    assert at.hot(keys) == [True] * 3
    at.check(keys - 2, 2, keys)


def test_lookups_alone_make_rows_hot_at_once_after_the_first(at):
    keys = at.cold()
    at.look(keys[:5])
    at.look(keys[5:8])
    assert (at.left, at.hot(keys[5:8])) == (0, [True] * 3)
    at.train(keys[20:22])
    at.look(keys[8:11])
    assert (at.left, at.hot(keys[8:11])) == (3, [False] * 3), "an update may follow again"


def test_rows_of_a_pooled_lookup_are_in_flight_too(at):
    before = at.reads
    pooled = kvemb.embedding_lookup_sparse(at.variable, at.keys, offsets=[0, 2], combiner="sum")
    assert pooled.values[:, 0].tolist() == [at.keys[:2].sum(), at.keys[2:].sum()]
    assert at.left == 5
    at.train()
    assert (at.left, at.reads - before) == (0, 5)
    at.check(at.keys - 1, 2)


def test_a_follower_sees_new_rows_of_keys_that_had_none(open_store, tmp_path):
    at = Trained(open_store(tmp_path / "store"))
    at.store.flush()
    with kvemb.open(tmp_path / "store", follow=True, memory_budget="4MiB") as follower:
        table = follower.variables["table"]
        storage = inside(table).storage
        with storage.access.held():  # so that the thread that reads ahead does not land them
            table.prefetch(at.keys, after_lookup=True)
        storage.ahead._readers = type("Never", (), {"submit": lambda *_: None})()
        assert not table.lookup(MISSING, return_exists=True)[1].any()
        assert storage.in_flight.left == 2
        at.variable.upsert(MISSING, column([5, 6]))
        at.store.flush()
        assert follower.refresh()
        assert table.lookup(MISSING)[:, 0].tolist() == [5.0, 6.0]


@pytest.mark.parametrize("how", ["drop", "close"])
def test_memory_in_flight_is_given_back_once(open_store, tmp_path, how):
    store = open_store(tmp_path / "store")
    free = store.budget.free
    at = Trained(store)
    at.look()
    assert at.storage.staged.in_flight.held > 0
    if how == "drop":
        store.drop_variable("table")
    else:
        store.close()
    assert (at.left, at.storage.staged.in_flight.held) == (0, 0)
    assert store.budget.free == free if how == "drop" else store.budget.free <= free


def test_chunks_of_a_large_lookup_are_landed_one_after_the_other(open_store, tmp_path):
    at = Trained(open_store(tmp_path / "store", limits=Limits(**small_spill(8), call_rows=4)))
    at.look(at.cold()[:10])
    assert at.left == 2, "the last chunk waits: no update can have followed the others"
    assert at.storage.in_flight.expected
    at.train()
    at.check(at.keys - 1, 2)


def test_rows_that_were_evicted_again_are_not_taken_from_flight_with_those_that_are_still_there(at):
    trained, others = at.keys[:2], np.setdiff1d(at.cold(), at.keys)[:24]
    for _ in range(5):
        at.variable.lookup(others)  # they have more uses
        at.train(others)
    at.look()
    at.train(trained)
    at.train(others)
    assert (at.left, any(at.hot(trained))) == (3, False), "an update lands nothing"
    at.train()
    at.check(at.keys - np.where(np.isin(at.keys, trained), 2, 1), 2)


def test_rows_that_no_memory_pays_for_do_not_wait_for_an_update_although_a_read_ahead_follows(at, monkeypatch):
    monkeypatch.setattr(at.storage.staged.in_flight, "take", lambda nbytes: False)
    at.variable.prefetch(at.keys, after_lookup=True)
    at.look()
    assert (at.left, at.storage.hot_tables.size > 0) == (0, True)
    at.train()
    at.check(at.keys - 1, 2)


def test_reading_scores_copies_nothing_for_a_snapshot(at):
    hot = ROWS[at.hot(ROWS)]
    with at.storage.access.held():
        snapshot = at.storage.snapshot.begin()
    at.variable.restrict_policy.status(hot)
    assert snapshot._copied_rows == 0
    at.variable.apply_gradients(hot, column(np.ones(len(hot))))
    assert snapshot._copied_rows == len(hot) > 0
    at.storage.snapshot.end()


def test_dirty_rows_in_flight_are_not_clean_when_they_land(at):
    at.look()
    with at.storage.access.held():
        pass
    owners = at.storage.hot_tables.owners(at.keys)
    (rows,) = at.storage.hot_tables.read(at.storage.hot_tables.find(at.keys, owners), owners)
    assert (rows.flags & DIRTY == DIRTY).all()
