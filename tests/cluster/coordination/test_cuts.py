"""A cut has each call on all of its shards or on none, whatever clients do, and does not wait for dead clients."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from waiting import wait_until

from kvemb.cluster.calls import Calls
from kvemb.cluster.coordination.cuts import cut, missing
from kvemb.cluster.ledger import ExecutedCalls, Ledger
from kvemb.errors import ShardLost

SHARDS = 3


class Notes:
    """A shard that keeps the calls made, in order."""

    def __init__(self, chance):
        self.made, self._ledger, self._chance = [], Ledger(), chance

    def note(self, stamp, what):
        time.sleep(self._chance.random() * 1e-3)
        self._ledger.once(stamp, lambda: self.made.append(what))

    def __getattr__(self, name):
        return getattr(self._ledger, name)


class Threads:
    """A transport to them: each call is a thread, and may be late."""

    shards = SHARDS

    def __init__(self, seed=0):
        self.places = [Notes(np.random.default_rng(seed + shard)) for shard in range(SHARDS)]

    def call(self, shard, name, *arguments):
        future = Future()

        def run():
            try:
                future.set_result(getattr(self.places[shard], name)(*arguments))
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=run).start()
        return future


def test_what_is_missing_is_what_some_have_made_and_the_client_waits_for():
    made = [
        {"a": ExecutedCalls(2, {2: 0b011, 3: 0b111}), "b": ExecutedCalls(0, {0: 0b101})},
        {"a": ExecutedCalls(0, {1: 0b010, 3: 0b111})},
        {"a": ExecutedCalls(3, {3: 0b111}), "b": ExecutedCalls(0, {0: 0b101})},
    ]
    assert missing(made) == {}, "2 is answered, as shard 2 knows; 3 is everywhere"
    del made[1]["a"].calls[3]
    assert missing(made) == {1: [("a", 3)]}
    assert missing([{"a": ExecutedCalls(0, {0: 0b110})}, {}, {}]) == {1: [("a", 0)], 2: [("a", 0)]}
    assert missing([{"a": ExecutedCalls(0, {0: 0})}, {}, {}]) == {}, "of a checkpoint"


@pytest.mark.parametrize("seed", range(4))
def test_calls_are_whole_and_in_order_at_every_cut(seed):
    way, stop = Threads(seed), threading.Event()

    def client(number):
        calls, chance = Calls(way), np.random.default_rng(seed * 10 + number)
        count = 0
        while not stop.is_set():
            shards = np.flatnonzero(chance.random(SHARDS) < 0.7).tolist()
            with calls.stamped(shards) as stamp:
                calls.each("note", {shard: (stamp, (number, count, len(shards))) for shard in shards})
            count += bool(shards)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen, calls = [], Calls(way)
    try:
        for number in range(8):
            before = len(way.places[0].made)
            wait_until(lambda before=before: len(way.places[0].made) > before + 5)
            with cut(calls, number):
                seen.append([list(place.made) for place in way.places])
                time.sleep(0.003)
                assert seen[-1] == [place.made for place in way.places], "nothing is made meanwhile"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for places in seen:
        count = {}
        for call in (call for place in places for call in place):
            count[call] = count.get(call, 0) + 1
        assert all(times == call[2] for call, times in count.items()), "half of a call"
        for number in range(4):  # a client's calls follow each other
            numbers = sorted({call[1] for call in count if call[0] == number})
            assert numbers == list(range(len(numbers)))
    assert len(seen[-1][0]) > len(seen[0][0])


def test_the_rest_of_a_call_that_is_late_is_waited_for_and_nothing_else_is_let_in():
    way = Threads()
    client, other, cutter = Calls(way), Calls(way), Calls(way)
    with client.stamped([0, 2]) as stamp, other.stamped([2]) as later:
        way.call(0, "note", stamp, "first").result()
        with cut_in_thread(cutter, 1) as inside:
            wait_until(lambda: not way.call(2, "admits", later).result())
            assert not inside.is_set()
            refused = way.call(2, "note", later, "later").exception()
            assert type(refused).__name__ == "GateClosed"
            wait_until(lambda: way.call(2, "admits", stamp).result())
            way.call(2, "note", stamp, "first").result()
            assert inside.wait(60)
            assert way.places[2].made == ["first"]
            assert not way.call(2, "admits", later).result()
        assert way.call(2, "admits", later).result()


class cut_in_thread:  # noqa: N801 -- reads as a function
    """A cut on another thread, which lasts until the block ends. Its event is set while it works."""

    def __init__(self, calls, number):
        self.inside, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(calls, number))

    def _run(self, calls, number):
        with cut(calls, number):
            self.inside.set()
            self._end.wait(60)

    def __enter__(self):
        self._thread.start()
        return self.inside

    def __exit__(self, *exc):
        self._end.set()
        self._thread.join()


def test_a_client_that_died_in_the_middle_of_a_call_loses_the_cluster_after_the_stated_time():
    way = Threads()
    dead, cutter, living = Calls(way), Calls(way), Calls(way)
    with dead.stamped([0, 1]) as stamp:
        way.call(1, "note", stamp, "half").result()
    with pytest.raises(ShardLost, match="ended during a call: shard 0 waited"), cut(cutter, 1, 0.1):
        raise AssertionError("there is nothing whole to see")
    with pytest.raises(ShardLost), cut(cutter, 2):
        pass
    with living.stamped([2]) as stamp:
        assert not way.call(2, "admits", stamp).result(), "the gates stay closed"


def test_a_client_that_died_between_calls_is_not_waited_for():
    way = Threads()
    dead, cutter = Calls(way), Calls(way)
    for what in range(3):
        with dead.stamped([0, 1]) as stamp:
            dead.each("note", dict.fromkeys((0, 1), (stamp, what)))
    with cut(cutter, 1, absent_seconds=0):
        assert way.places[0].made == [0, 1, 2]


def test_a_late_repetition_of_a_cut_that_ended_closes_nothing():
    way = Threads()
    cutter, living = Calls(way), Calls(way)
    with cut(cutter, 1):
        pass
    cutter.all("hold", 1, cutter.client)
    with living.stamped([2]) as stamp:
        assert way.call(2, "admits", stamp).result()
    with cut(cutter, 2):
        cutter.all("release", 1)
        assert not way.call(2, "admits", stamp).result()


def test_ctrl_c_leaves_a_call_on_all_of_its_shards():
    way = Threads()
    client = Calls(way)
    for number in range(12):
        timer = threading.Timer(number * 2e-4, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            timer.start()
            with client.stamped(range(SHARDS)) as stamp:
                client.all("note", stamp, number)
            timer.join()
            time.sleep(0.01)
        assert len({number in place.made for place in way.places}) == 1
