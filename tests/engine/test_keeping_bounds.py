"""Tables keep their bounds by themselves: stored, changeable, after failures too, and without a call that waits."""

from __future__ import annotations

import gc
import logging
import threading

import numpy as np
import pytest
from waiting import wait_until

import kvemb
from kvemb.engine.keeping_bounds import Keeper
from kvemb.errors import ColdStoreError, Poisoned, ReadOnly
from kvemb.handle import inside
from kvemb.operations.table_operations import TableOperations
from kvemb.restrict.bounds import INTERVALS, MARGIN

DAY = 86_400.0


def ones(count):
    return np.ones((count, 2), np.float32)


class Days:
    """Looks at a store's tables at times that the test says."""

    def __init__(self, store, day=20_000.0, retry_seconds=60.0):
        self.day, self._engine = day, inside(store)
        self._keeper = Keeper(self._engine, lambda seconds: True, lambda: self.day * DAY, retry_seconds)

    def look(self, day=None):
        self.day = self.day if day is None else day
        self._keeper.look(self._engine)


@pytest.fixture
def by_hand(monkeypatch):
    """No thread of its own looks at the tables."""
    monkeypatch.setattr(Keeper, "run", lambda self: None)


class TestMaxRows:
    def test_a_table_that_grows_is_restricted_by_itself(self, store):
        users = store.get_variable("users", dim=2, max_rows=1000, restrict_policy=kvemb.FrequencyRestrictPolicy)
        users.upsert(np.arange(500), ones(500))
        users.lookup(np.arange(500))
        for first in range(500, 5000, 500):
            users.upsert(np.arange(first, first + 500), ones(500))
        wait_until(lambda: users.size() <= 1000 + 1000 // MARGIN)
        assert set(range(500)) <= set(users.export()[0].tolist())
        assert users.max_rows == 1000

    def test_it_begins_at_a_margin_and_ends_at_the_bound(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, max_rows=160), Days(store)
        users.upsert(np.arange(170), ones(170))
        days.look()
        assert users.size() == 170
        users.upsert([170], ones(1))
        days.look()
        assert users.export()[0].tolist() == [*range(11, 171)]

    def test_a_small_bound_is_kept_exactly(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, max_rows=1), Days(store)
        users.upsert([1, 2], ones(2))
        days.look()
        assert users.size() == 1

    @pytest.mark.parametrize("creator", [kvemb.RocksDBCreator(), kvemb.MemoryCreator()], ids=["rocks", "memory"])
    def test_it_needs_no_policy_and_no_disk(self, store, by_hand, creator):
        users, days = store.get_variable("users", dim=2, max_rows=10, kv_creator=creator), Days(store)
        users.upsert(np.arange(20), ones(20))
        users.lookup(np.arange(0, 20, 2))
        days.look()
        assert users.export()[0].tolist() == [*range(0, 20, 2)]

    def test_it_is_stored_and_may_change_at_each_call(self, open_store, tmp_path, by_hand, caplog):
        caplog.set_level(logging.INFO, "kvemb")
        store = open_store(tmp_path / "store")
        assert store.get_variable("users", dim=2).max_rows is None
        users = store.get_variable("users", max_rows=50)
        assert users.max_rows == 50
        assert "the bounds of variable 'users' become max_rows=50; they were none" in caplog.text
        store.close()
        for given, then in ((None, 50), (70, 70), (None, 70)):
            with kvemb.open(tmp_path / "store") as store:
                users = store.get_variable("users", max_rows=given)
                assert users.max_rows == then
                assert kvemb.bulk.described(users)["max_rows"] == then
        with kvemb.open(tmp_path / "store") as store:
            store.variables["users"].max_rows = None
            assert store.variables["users"].max_rows is None
        with kvemb.open(tmp_path / "store", read_only=True) as store:
            assert store.variables["users"].max_rows is None

    def test_a_bound_that_is_set_later_begins_the_thread(self, store):
        users = store.get_variable("users", dim=2)
        users.upsert(np.arange(100), ones(100))
        assert inside(store).keeper is None
        users.max_rows = 10
        wait_until(lambda: users.size() == 10)

    def test_a_restored_store_has_it_too(self, store, tmp_path, by_hand):
        store.get_variable("users", dim=2, max_rows=10, ttl=DAY)
        store.checkpoint(tmp_path / "saved")
        with kvemb.restore(tmp_path / "saved", tmp_path / "other") as other:
            assert (other.variables["users"].max_rows, other.variables["users"].ttl) == (10, DAY)

    def test_a_reader_has_the_stores_and_cannot_change_it(self, store, by_hand):
        users = store.get_variable("users", dim=2, max_rows=10)
        users.upsert(np.arange(100), ones(100))
        store.flush()
        with kvemb.open(store.path, follow=True) as reader:
            told = (
                "the read-only store .* cannot change max_rows, ttl or the policy of variable 'users'; leave them out"
            )
            with pytest.raises(ReadOnly, match=told):
                reader.get_variable("users", max_rows=20)
            read = reader.get_variable("users", max_rows=10)
            assert (read.max_rows, read.size(), inside(reader).keeper) == (10, 100, None)
            with pytest.raises(ReadOnly, match=told):
                reader.get_variable("users", ttl=5)
            with pytest.raises(ReadOnly, match=told):
                read.max_rows = None

    @pytest.mark.parametrize(
        ("given", "error", "told"),
        [
            ({"max_rows": 0}, ValueError, "max_rows must be at least 1, got 0"),
            ({"max_rows": 1.5}, TypeError, "max_rows must be an int, got 1.5"),
            ({"max_rows": True}, TypeError, "max_rows must be an int, got True"),
            ({"ttl": 0}, ValueError, "ttl must be finite and above 0, got 0; it is in seconds; a day has 86400"),
            ({"ttl": float("inf")}, ValueError, "ttl must be finite and above 0, got inf; it is in seconds"),
            ({"ttl": "1d"}, TypeError, "ttl must be a number, got str '1d'; it is in seconds; a day has 86400"),
        ],
    )
    def test_what_is_no_bound_is_refused(self, store, given, error, told):
        with pytest.raises(error, match=told):
            store.get_variable("users", dim=2, **given)
        users, (name, value) = store.get_variable("users", dim=2), *given.items()
        with pytest.raises(error, match=told):
            store.get_variable("users", **given)
        with pytest.raises(error, match=told):
            setattr(users, name, value)
        assert (users.max_rows, users.ttl, inside(store).keeper) == (None, None, None)

    def test_without_the_policy_of_its_own_it_is_not_kept_and_a_warning_says_so(self, open_store, tmp_path, caplog):
        class Mine(kvemb.RestrictPolicy):
            def score(self, old_score, count, now):
                return old_score + count

        with open_store(tmp_path / "store") as store:
            store.get_variable("users", dim=2, restrict_policy=Mine).upsert(np.arange(100), ones(100))
        store = open_store(tmp_path / "store")
        users = store.get_variable("users", max_rows=10)
        assert "'users', max_rows=10, are not kept while it is open without its policy" in caplog.text
        Days(store).look()
        assert users.size() == 100
        store.close()
        users = open_store(tmp_path / "store").get_variable("users", restrict_policy=Mine)
        wait_until(lambda: users.size() == 10)


class TestTtl:
    def test_rows_that_did_not_change_for_so_long_go(self, store, by_hand):
        users = store.get_variable("users", dim=2, ttl=10 * DAY, optimizer=kvemb.optimizers.SGD(0.1))
        days = Days(store, 0.0)
        for day in range(20):
            users.upsert([day], ones(1))  # no call records uses, so only the days change the step
            users.lookup([3])
            users.apply_gradients([5], ones(1))
            days.look(day + 1 / 2)
            assert users.export()[0].tolist() == sorted({*range(max(0, day - 9), day + 1), 5})

    def test_it_combines_with_every_ranking_and_with_max_rows(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, ttl=DAY, max_rows=30), Days(store, 0.0)
        users.upsert(np.arange(20), ones(20))
        for _ in range(5):
            users.lookup(np.arange(20))
        days.look(0.5)
        users.upsert(np.arange(20, 40), ones(20))
        users.lookup(np.arange(35, 40))
        days.look(1.0)
        assert users.export()[0].tolist() == [*range(20), *range(30, 40)]
        users.upsert([100], ones(1))
        days.look(1.6)
        assert users.export()[0].tolist() == [*range(30, 40), 100]

    def test_time_passes_while_the_store_is_closed(self, open_store, tmp_path, by_hand):
        for day, present in ((0.0, [0]), (3.0, [0, 3]), (6.0, [0, 3, 6]), (10.5, [3, 6, 10]), (30.0, [30])):
            with open_store(tmp_path / "store") as store:
                users, days = store.get_variable("users", dim=2, ttl=10 * DAY), Days(store)
                users.upsert([int(day)], ones(1))
                days.look(day)
                assert users.export()[0].tolist() == present

    def test_an_idle_table_ages_but_notes_nothing(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, ttl=DAY), Days(store, 0.0)
        users.upsert([1], ones(1))
        days.look(0.0)
        store.flush()
        point = store.point
        for hour in range(1, 24):
            days.look(hour / 24)
        store.flush()
        assert (store.point, users.size(), len(inside(users).ages)) == (point, 1, 1)
        days.look(1.0)
        assert (users.size(), inside(users).ages) == (0, ())

    def test_what_it_notes_is_bounded(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, ttl=DAY), Days(store, 0.0)
        for hour in range(0, 240, 2):
            users.upsert([hour], ones(1))
            days.look(hour / 24)
            assert len(inside(users).ages) <= INTERVALS + 1
        assert users.size() == 12

    def test_changing_it_counts_from_what_is_known(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, ttl=100 * DAY), Days(store, 0.0)
        for day in range(0, 60, 4):
            users.upsert([day], ones(1))
            days.look(day)
        users.ttl = 20 * DAY
        days.look()
        assert users.export()[0].tolist() == [*range(40, 60, 4)]
        users.ttl = None
        days.look(1000.0)
        assert (users.size(), inside(users).ages) == (5, ())
        users.ttl = DAY  # nothing is known of the time before
        days.look(1000.0)
        days.look(1000.9)
        assert users.size() == 5
        days.look(1001.0)
        assert users.size() == 0

    def test_a_clock_that_goes_back_lets_rows_live_longer(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, ttl=DAY), Days(store, 10.0)
        users.upsert([1], ones(1))
        days.look(10.0)
        days.look(5.0)
        users.upsert([2], ones(1))
        days.look(5.5)
        assert users.size() == 2
        days.look(11.0)
        assert users.export()[0].tolist() == [2]


class TestFailures:
    def test_what_fails_is_logged_and_tried_again(self, store, by_hand, monkeypatch, caplog):
        failed, keep = [], TableOperations.keep_bounds

        def fails_twice(self, *arguments):
            if len(failed) < 2:
                failed.append(1)
                raise ColdStoreError("no room for the scores")
            return keep(self, *arguments)

        monkeypatch.setattr(TableOperations, "keep_bounds", fails_twice)
        users, days = store.get_variable("users", dim=2, max_rows=10), Days(store, retry_seconds=0.0)
        users.upsert(np.arange(100), ones(100))
        for size in (100, 100, 10):
            days.look()
            assert users.size() == size
        told = "could not be restricted to its bounds, max_rows=10, which will be tried again: ColdStoreError('no room"
        assert caplog.text.count(told) == 2

    def test_a_table_that_fails_does_not_keep_others_from_their_bounds(self, store, by_hand, caplog):
        class Broken(kvemb.FrequencyRestrictPolicy):
            def ranking(self, scores, values):
                raise ZeroDivisionError("broken")

        first = store.get_variable("first", dim=2, max_rows=10, restrict_policy=Broken())
        second = store.get_variable("second", dim=2, max_rows=10)
        for each in (first, second):
            each.upsert(np.arange(20), ones(20))
        days = Days(store)
        days.look()
        days.look()  # it waits before it is tried again
        assert (first.size(), second.size(), caplog.text.count("broken")) == (20, 10, 1)

    def test_a_poisoned_store_is_left_alone_until_it_has_recovered(self, store, by_hand):
        users, days = store.get_variable("users", dim=2, max_rows=10), Days(store)
        users.upsert(np.arange(20), ones(20))
        store.state.poison(ColdStoreError("the disk is full"), intact=True)
        days.look()
        assert users.size() == 20
        with pytest.raises(Poisoned):
            users.max_rows = 5
        assert users.max_rows == 10
        store.recover()
        days.look()
        assert users.size() == 10

    def test_a_dropped_table_ends_its_restriction(self, store, by_hand, monkeypatch):
        users, keep = store.get_variable("users", dim=2, max_rows=10), TableOperations.keep_bounds
        users.upsert(np.arange(20), ones(20))

        def dropped_meanwhile(self, max_rows, expired, pause, refreshes):
            def dropped(took):
                return "users" in store.variables and store.drop_variable("users")

            return keep(self, max_rows, expired, dropped, refreshes)

        monkeypatch.setattr(TableOperations, "keep_bounds", dropped_meanwhile)
        Days(store).look()
        assert list(store.variables) == []

    def test_the_ages_that_a_rollback_left_behind_do_not_come_back(self, store, by_hand, monkeypatch):
        users, days, keep = store.get_variable("users", dim=2, ttl=2 * DAY), Days(store), TableOperations.keep_bounds
        users.upsert([1], ones(1))
        days.look()
        mark = store.mark(block=True)
        for day in range(1, 4):
            users.upsert(np.arange(10, 20), ones(10))
            days.look(20_000.0 + day)

        def rolled_back_meanwhile(self, max_rows, expired, pause, refreshes):
            store.rollback(mark)
            users.upsert(np.arange(500), ones(500))
            return keep(self, max_rows, expired, pause, refreshes)

        with monkeypatch.context() as patch:
            patch.setattr(TableOperations, "keep_bounds", rolled_back_meanwhile)
            days.look(20_004.0)
        days.look(20_004.1)
        assert set(range(500)) <= set(users.export()[0].tolist())


class TestLife:
    def test_closing_ends_it_in_the_middle(self, open_store, tmp_path, monkeypatch):
        entered, keep = threading.Event(), TableOperations.keep_bounds

        def never_ends(self, max_rows, expired, pause, refreshes):
            entered.set()
            while True:
                pause(0.01)

        monkeypatch.setattr(TableOperations, "keep_bounds", never_ends)
        store = open_store(tmp_path / "store")
        users = store.get_variable("users", dim=2, max_rows=10)
        users.upsert(np.arange(20), ones(20))
        entered.wait()
        keeper = inside(store).keeper
        store.close()
        assert not keeper.is_alive()
        monkeypatch.setattr(TableOperations, "keep_bounds", keep)
        with open_store(tmp_path / "store") as store:
            users = store.variables["users"]
            wait_until(lambda: users.size() == 10)

    @pytest.mark.filterwarnings("ignore:unclosed file.*LOCK:ResourceWarning")
    def test_it_does_not_keep_a_store_open_that_nobody_refers_to(self, tmp_path, caplog):
        store = kvemb.open(tmp_path / "store", memory_budget="8MiB")
        store.get_variable("users", dim=2, max_rows=10)
        keeper = inside(store).keeper
        del store
        wait_until(lambda: [gc.collect(), not keeper.is_alive()][1])  # it may have looked at the tables just now
        assert "was not closed" in caplog.text

    def test_what_was_removed_stays_so_after_a_crash(self, open_store, tmp_path, by_hand):
        store = open_store(tmp_path / "store", durability="write")
        users, days = store.get_variable("users", dim=2, max_rows=10), Days(store)
        users.upsert(np.arange(20), ones(20))
        days.look()
        left = users.export()[0].tolist()
        store.close(flush=False)
        with open_store(tmp_path / "store", durability="write") as store:
            assert store.variables["users"].export()[0].tolist() == left == [*range(10, 20)]

    def test_replicas_get_the_removals(self, store, tmp_path, by_hand):
        users, days = store.get_variable("users", dim=2, max_rows=10), Days(store)
        users.upsert(np.arange(10), ones(10))
        first = store.checkpoint(tmp_path / "first")
        users.upsert(np.arange(10, 20), ones(10))
        days.look()
        with kvemb.restore(first, tmp_path / "replica") as replica:
            replica.apply_delta(store.checkpoint(tmp_path / "second"))
            assert replica.variables["users"].export()[0].tolist() == [*range(10, 20)]
