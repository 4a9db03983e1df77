"""Calls whose answers are lost are repeated, and executed once; a shard that never answers is lost."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pytest
from faulty import FaultyCluster
from twins import train, twin_of

from kvemb.cluster.calls import MAX_ATTEMPTS, Calls, Timeouts
from kvemb.cluster.transport import GateClosed, Unanswered
from kvemb.errors import ShardLost

KEYS = np.arange(300)


class Silent:
    """A transport of one shard that answers nothing, but pings until it is stopped."""

    shards = 1

    def __init__(self):
        self.stopped, self.pings, self.waiting = False, 0, Future()

    def call(self, shard, name, *arguments):
        return self.waiting

    def ping(self, shard):
        self.pings += 1
        if self.pings == 3:
            self.waiting.set_result("late")
        answer = Future()
        if not self.stopped:
            answer.set_result(None)
        return answer


def test_a_shard_whose_process_hangs_is_lost_after_the_stated_time_and_one_that_is_slow_is_not():
    silent = Silent()
    calls = Calls(silent, timeouts=Timeouts(0.02, 0.05))
    assert calls.all("slow") == ["late"]
    silent.stopped, silent.waiting, silent.pings = True, Future(), 10
    with pytest.raises(
        ShardLost, match=r"not answered a call of stuck and a ping for 0\.07 seconds: .* hangs; recover"
    ):
        calls.all("stuck")


def test_a_call_on_rows_that_takes_too_long_is_lost_and_another_one_may_take_as_long_as_it_needs():
    silent = Silent()
    assert Calls(silent, timeouts=Timeouts(0.02, 0.05, 0.01)).all("push") == ["late"]
    silent.waiting, silent.pings = Future(), 10
    calls = Calls(silent, timeouts=Timeouts(0.02, 0.05, 0.1))
    with pytest.raises(ShardLost, match=r"a call of change for 0\.1 seconds \(answer_seconds .* its disk hangs, or"):
        calls.all("change")


def test_calls_that_wait_end_when_another_one_finds_a_loss():
    silent = Silent()
    silent.pings = 10
    calls = Calls(silent, timeouts=Timeouts(0.02, 0.05))
    threading.Timer(0.1, calls.lose, [ShardLost("shard 7 is lost")]).start()
    with pytest.raises(ShardLost, match="shard 7 is lost"):
        calls.all("push")


def test_a_patience_is_that_of_the_time_given():
    assert Timeouts.within(300.0) == (30, 30, 300)
    assert Timeouts.within(2.0) == (1, 1, 2)


class Script:
    """A transport of two shards that answers as it is told to."""

    shards = 2

    def __init__(self, *answers):
        self.answers, self.made = list(answers), []

    def call(self, shard, name, *arguments):
        self.made.append((shard, name, *arguments))
        future, answer = Future(), self.answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def close(self):
        pass


def test_results_come_in_the_order_of_shards_and_lost_calls_are_sent_again():
    script = Script(Unanswered("gone"), "b", Unanswered("gone"), "a")
    assert Calls(script).all("name", 1) == ["a", "b"]
    assert script.made == [(0, "name", 1), (1, "name", 1), (0, "name", 1), (0, "name", 1)]


def test_calls_that_were_lost_before_the_gate_closed_do_not_count_after_it():
    lost = [Unanswered("gone")] * (MAX_ATTEMPTS - 1)
    script = Script(*lost, GateClosed(), True, *lost[1:], "a")
    calls = Calls(script)
    with calls.stamped([0]) as stamp:
        assert calls.each("note", {0: (stamp,)}) == {0: "a"}
    assert calls.lost is None


def test_a_failure_is_raised_when_all_have_ended_and_is_not_repeated():
    script = Script(KeyError("first"), ValueError("second"))
    with pytest.raises(KeyError, match="first"):
        Calls(script).all("name")
    assert len(script.made) == 2


def test_a_shard_that_never_answers_is_lost_and_nothing_goes_on():
    calls = Calls(Script("a", *[Unanswered("gone")] * MAX_ATTEMPTS))
    with pytest.raises(ShardLost, match=f"shard 1 did not answer a call of name, sent {MAX_ATTEMPTS} times: gone"):
        calls.all("name")
    with pytest.raises(ShardLost, match="shard 1"):
        calls.all("other")


def test_stamps_say_which_answers_have_arrived():
    calls = Calls(Script())
    with calls.stamped([0]) as first:
        with calls.stamped([1]) as second:
            pass
        with calls.stamped([0, 1]) as third:
            pass
    with calls.stamped([]) as fourth:
        pass
    assert [each.number for each in (first, second, third, fourth)] == [0, 1, 2, 3]
    assert [each.answered for each in (first, second, third, fourth)] == [0, 0, 0, 3]
    assert [each.shards for each in (first, second, third, fourth)] == [1, 2, 3, 0]


def test_every_change_is_made_once_whatever_is_lost_or_arrives_twice(tmp_path):
    faulty = FaultyCluster(tmp_path, 3, 0.3)
    cluster, transport = faulty.first, faulty.transports[0]
    twin = twin_of(cluster, KEYS)
    for seed in range(6):
        train(twin, seed, 10)
    twin.check_size()
    twin.check_export(20)
    assert min(transport.counts.values()) > 100
    cluster.close()
